"""The records of a structure: walked with paths, by number, and by what is rank 0's."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from deeppart.state.document.structure import (
    DICTS,
    SavedApart,
    SavedArray,
    SavedBranch,
    SavedNode,
    SavedValue,
    Structure,
    walk_tree,
)
from deeppart.state.tree.paths import exact
from deeppart.testing.states import Box
from tests.unit.state.saved_states import structure_of

STATE: dict[str, Any] = {
    "z": torch.zeros(1),
    "model": Box(OrderedDict({"b.w": torch.zeros(2), "a.w": np.zeros(3)})),
    "items": [1, ("x", torch.zeros(4)), []],
}


def test_every_leaf_and_value_is_walked_once_in_the_order_of_the_tree() -> None:
    assert list(structure_of(STATE).walk()) == [
        (("z",), SavedArray(3)),
        (("model", "b.w"), SavedArray(2)),
        (("model", "a.w"), SavedArray(1)),
        (("items", 0), SavedValue(0)),
        (("items", 1, 0), SavedValue(1)),
        (("items", 1, 1), SavedArray(0)),
    ]


def test_paths_of_leaves_are_by_number_and_an_object_adds_no_key() -> None:
    assert structure_of(STATE).array_paths() == [("items", 1, 1), ("model", "a.w"), ("model", "b.w"), ("z",)]
    assert structure_of(torch.zeros(2)).array_paths() == [()]
    assert structure_of({"only": 1}).array_paths() == []


def test_a_tree_that_stands_at_a_path_is_walked_from_there_and_what_stands_apart_is_passed_over() -> None:
    node: SavedNode = SavedBranch("list", (0, 1, 2), (SavedArray(5), SavedApart(), SavedValue(7)))
    assert list(walk_tree(node, ("at", 1))) == [(("at", 1, 0), SavedArray(5)), (("at", 1, 2), SavedValue(7))]
    assert list(walk_tree(SavedApart(), ("at",))) == []
    assert list(walk_tree(SavedValue(3), ())) == [((), SavedValue(3))]


def rank0_leaves(*paths: tuple[Any, ...]) -> dict[int, tuple[Any, ...]]:
    structure = replace(structure_of(STATE), rank0=frozenset(map(exact, paths)))
    return {
        index: tuple(key if isinstance(key, str) else key[1] for key in path)
        for index, path in structure.rank0_leaves().items()
    }


def test_leaves_below_what_is_rank_0s() -> None:
    assert rank0_leaves() == {}
    assert rank0_leaves(("model",), ("z",)) == {1: ("model",), 2: ("model",), 3: ("z",)}
    assert rank0_leaves(("items", 1)) == {0: ("items", 1)}
    assert rank0_leaves(("items", True), ("items", "1"), ("items", 0), ("mod",)) == {}, "keys keep their types"
    assert rank0_leaves(()) == dict.fromkeys(range(4), ())


def test_kinds_of_dicts() -> None:
    assert DICTS == {"dict", "odict", "counter", "defaultdict"}


def test_a_structure_without_values_has_none_of_its_own() -> None:
    structure = Structure(SavedArray(0), (), np.zeros(1, dtype=np.bool_))
    assert len(structure.per_rank_values) == 0 and structure.rank0_leaves() == {}
