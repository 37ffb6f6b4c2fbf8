"""Forged structure documents: what no writer means is refused, and costs no memory."""

from __future__ import annotations

import json
import sys
import tracemalloc
from typing import Any

import pytest
import torch

from deeppart.errors import CorruptFileError
from deeppart.state.document.structure_json import decode_structure
from deeppart.state.tensors.leaves import LeafType
from deeppart.state.values import decode_value
from tests.fuzz.odd_values import RUNS

SOUND = {"tree": ["dict", None, ["w"], [0]], "leaves": [["torch", "float32", [3]]], "per_rank": []}
SOUND |= {"rank0": [], "rank_local": False, "boxes": []}


def nested(depth: int) -> Any:
    tree: Any = 0
    for _ in range(depth):
        tree = ["list", None, None, [tree]]
    return tree


def test_a_sound_structure_is_read() -> None:
    assert decode_structure(SOUND, "here").types == {0: LeafType("torch", "float32", (3,))}
    decode_structure({**SOUND, "tree": nested(200)}, "here")


@pytest.mark.parametrize(
    "change",
    [
        {"tree": nested(201)},
        {"tree": nested(480)},
        {"tree": [0]},
        {"tree": ["list", None, None, "aa"]},
        {"tree": ["object", 5, None, [0]]},
        {"tree": ["odict", {"": 5}, ["w"], [0]]},
        {"tree": ["odict", [["", {}]], ["w"], [0]]},
        {"leaves": [["torch", "float32", [1 << 62]]]},
        {"leaves": [["torch", "float32", [0, 1 << 40, 1 << 40]]]},
        {"leaves": [["torch", "float32", [1] * 65]]},
        {"leaves": [["torch", "float32", [1 << 61] * 200_000]]},
        {"leaves": [["torch", "float32", "3"]]},
        {"leaves": [["torch", "float32", [True]]]},
        {"leaves": [["torch", "float32", [3], None]]},
        {"leaves": [["numpy", ",,,", [3]]]},
        {"leaves": [["numpy", "(1000000000000,)f4", [3]]]},
        {"leaves": [["numpy", "<U268435455", [0]]]},
        {"leaves": [["numpy", "f4", [3]]]},
        {"leaves": [["numpy", "<M8[25s/3]", [3]]]},
        {"leaves": [["numpy", ["<f4"], [3]]]},
        {"leaves": {"0": []}},
        {"leaves": [{"value": 1, "0": 1}]},
        {"leaves": ["value"]},
        {"per_rank": {"0": 1}},
    ],
)
def test_a_structure_that_no_writer_means(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptFileError) as caught:
        decode_structure({**SOUND, **change}, "here")
    assert len(str(caught.value)) < 2000


def test_long_keys_above_many_leaves() -> None:
    """A megabyte that would be written out for each of two thousand leaves."""
    leaves = [["torch", "float32", [1]]] * 2000
    tree = ["dict", None, ["x" * (1 << 20)], [["list", None, None, list(range(2000))]]]
    with pytest.raises(CorruptFileError, match="cannot be read"):
        decode_structure({**SOUND, "tree": tree, "leaves": leaves}, "here")


def deep_tuples() -> Any:
    deep: Any = 0
    for _ in range(3000):
        deep = ["tuple", [deep]]
    return deep


@pytest.mark.parametrize(
    "encoded",
    [
        {"a": 1},
        1 << 63,
        "\ud800",
        float("nan"),
        ["dtype", "_inductor"],
        ["dtype", "nn"],
        ["dtype", "float"],
        ["device", 0],
        ["device", "cuda:128"],
        ["int", "1"],
        ["int", "0xff"],
        ["float", "3ff0000000000000"],
        ["tuple", "ab"],
        ["tuple", {"a": 1}],
        ["size", [True, 1.0]],
        ["size", [1 << 64]],
        ["bytes", "QUJ="],
        ["numpy", "|O", "00" * 8],
        ["numpy", "<f4", "00000000ff"],
        ["numpy", ",,,", ""],
        ["bytes", json.loads("[" * 900 + "]" * 900)],
        [],
        [["tuple"], []],
        deep_tuples(),
        *RUNS,
    ],
)
def test_a_value_that_no_writer_means(encoded: Any) -> None:
    with pytest.raises(CorruptFileError) as caught:
        decode_value(encoded, "here")
    assert len(str(caught.value)) < 1000


@pytest.mark.sweep(3, kinds=("kind",))
@pytest.mark.parametrize("kind", ["dict", "odict", "counter"])
@pytest.mark.parametrize("levels", [1, 4, 15])
def test_memory_of_nested_values(levels: int, kind: str) -> None:
    """As docs/failure-model.md bounds it: what is forged takes no more than what is honest."""
    rows: list[Any] = [True] * 1_000
    for _ in range(levels):
        rows = [[kind, ["a"], [row]] for row in rows[:1]] * len(rows)
    encoded = ["list", rows]
    tracemalloc.start()
    try:
        decode_value(encoded, "somewhere")
        assert tracemalloc.get_traced_memory()[1] < 300 * len(json.dumps(encoded))
    finally:
        tracemalloc.stop()


def test_nothing_is_imported_that_a_file_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "_inductor")  # pytest asks for it before, and so torch imports it
    monkeypatch.delitem(sys.modules, "torch._inductor")
    with pytest.raises(CorruptFileError):
        decode_value(["dtype", "_inductor"], "here")
    assert "torch._inductor" not in sys.modules
