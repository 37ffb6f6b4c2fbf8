"""``deeppart show``: the tree, its leaves, and where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.cli_support import call, call_json, make_state, save


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


def test_globs(tmp_path: Path) -> None:
    save(tmp_path, 1)
    assert call_json("show", tmp_path, "rate")["totals"]["leaves"] == 0
    text = call("show", tmp_path, "model/b*", "r*")
    assert "bias" in text and "rate" in text and "weight" not in text and "moments" not in text
    assert "no leaf of the checkpoint matches" in call("show", tmp_path, "nothing*", code=1)


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
