"""``deeppart show``: the tree, its leaves, and where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import deeppart
from tests.unit.cli_support import (
    call,
    call_json,
    forge,
    make_state,
    manifest_path,
    save,
    save_states,
)


def leaves(*arguments: object, code: int = 0) -> dict[str, Any]:
    return {leaf["path"]: leaf for leaf in call_json("show", *arguments, code=code)["leaves"]}


def test_tree(tmp_path: Path) -> None:
    save(tmp_path, 1)
    text = call("show", tmp_path)
    assert text.startswith("step 1  ") and "1 rank, deeppart" in text
    assert "├── model  dict of 3\n" in text
    assert "│   ├── 0  float32[1200, 1000]  4.8 MB  part 0\n" in text
    assert "├── noise  numpy <f8[3, 5]  120 B  part 0\n" in text
    assert "├── empty  float32[0, 4]  0 B  no bytes\n" in text
    assert "├── rate  = 0.001\n" in text
    assert "└── a~1b  tuple of 3\n    ├── 0  = None\n    ├── 1  = 'text'\n    └── 2  = torch.bfloat16\n" in text
    assert "8 leaves and 7 values: 6.08 MB replicated, 0 B per rank; in all 1 part file, 6.09" in text


def test_which_step(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    assert call_json("show", tmp_path)["step"] == 2
    assert call_json("show", tmp_path, "--step", 1)["step"] == 1
    assert "step 9 is not a committed checkpoint" in call("show", tmp_path, "--step", 9, code=1)
    manifest_path(tmp_path, 2).unlink()
    assert call_json("show", tmp_path)["step"] == 1


def test_globs(tmp_path: Path) -> None:
    save(tmp_path, 1)
    assert list(leaves(tmp_path, "model/*", "r*")) == ["model/weight", "model/head", "model/bias", "rate"]
    assert list(leaves(tmp_path, "*/0")) == ["moments/0", "a~1b/0"]
    assert call_json("show", tmp_path, "rate")["totals"]["leaves"] == 0
    text = call("show", tmp_path, "model/b*")
    assert "bias" in text and "weight" not in text and "moments" not in text
    assert "no leaf of the checkpoint matches" in call("show", tmp_path, "nothing*", code=1)
    same = deeppart.load(tmp_path, keys=["model/*", "r*"])
    assert same.keys() == {"model", "rate"}


def test_flat(tmp_path: Path) -> None:
    save(tmp_path, 1)
    lines = call("show", tmp_path, "--flat").splitlines()
    assert len(lines) == 15 + 1
    assert lines[3].split() == ["moments/0", "float32[1200,", "1000]", "4.8", "MB", "part", "0"]
    assert lines[8].split() == ["step", "=", "12"]
    assert len({line.index("  ") for line in lines if line.startswith("not a number")}) == 1


def test_statistics(tmp_path: Path) -> None:
    save(tmp_path, 1)
    plain, found = leaves(tmp_path), leaves(tmp_path, "--stats")
    assert all(leaf["stats"] is None for leaf in plain.values() if leaf["kind"] == "leaf")
    for path, leaf in found.items():
        stats = leaf.get("stats")
        without = dict.fromkeys(leaf.keys() & {"stats", "stats_per_rank"})
        assert leaf | without == plain[path] and (stats is None) == (leaf["kind"] == "value")
    assert call_json("show", tmp_path, "ids", "--stats")["leaves"][0]["stats"].keys() == {
        "elements", "nans", "infinities", "zeros", "min", "max", "mean", "std", "rms"
    }  # fmt: skip
    state = make_state(1.0)
    line = next(line for line in call("show", tmp_path, "--stats").splitlines() if " ids " in line)
    assert f"  min {state['ids'].min().item()}  max {state['ids'].max().item()}  mean " in line
    lines = {line.split()[0]: line for line in call("show", tmp_path, "--stats", "--flat").splitlines()}
    assert "std" in lines["noise"] and "min" not in lines["empty"] and "min" not in lines["rate"]


def test_statistics_of_ranks_and_of_what_is_no_number(tmp_path: Path) -> None:
    forge(tmp_path / "ranks", 5)
    rng = leaves(tmp_path / "ranks", "--stats")["rng"]
    assert [stats["mean"] for _, stats in rng["stats_per_rank"]] == [0.0, 1.0, 2.0] and rng["stats"]["mean"] == 1.0
    bad = {"x": torch.tensor([1.0, float("nan"), float("inf"), 0.0]), "c": torch.tensor([1j])}
    save_states(tmp_path / "bad", bad)
    text = call("show", tmp_path / "bad", "--stats")
    assert "min 0  max 1  mean 0.5  std 0.5  1 zero  1 NaN  1 infinite" in text and "mean 0+1j" in text
    assert leaves(tmp_path / "bad", "--stats")["c"]["stats"]["mean"] == "1j"
