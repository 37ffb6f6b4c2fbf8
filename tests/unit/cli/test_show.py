"""``deeppart show``: the tree, its leaves, and where they lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deeppart
from tests.unit.cli_support import call, call_json, manifest_path, save


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


def test_shapes_that_differ_between_ranks_are_shown(tmp_path: Path) -> None:
    from deeppart.cli.show import _description
    from deeppart.offline.inspect.described import Leaf
    from deeppart.state.tree.leaves import LeafType

    kinds = {0: LeafType("torch", "uint8", (4,)), 1: LeafType("torch", "uint8", (5,))}
    text = "".join(piece for piece, _ in _description(Leaf("x", kinds[0], kinds, None, ())))
    assert text == "uint8[4]  4 B  per rank (0-1)  differing: uint8[4], uint8[5]"
