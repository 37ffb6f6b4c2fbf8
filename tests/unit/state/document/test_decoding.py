"""A structure document that came from a file: read as it was written, and what no writer makes is damage."""

from __future__ import annotations

from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.errors import CorruptFileError, NewerFormatError
from deeppart.state.document.structure import Alias, SavedArray, SavedBranch, SavedNode
from deeppart.state.document.structure_json import (
    STRUCTURE_VERSION,
    check_aliases,
    check_nesting,
    decode_structure,
    decode_tree,
)
from deeppart.state.restore.merge import build
from deeppart.state.tree.flatten import DEEPEST_NESTING, flatten
from deeppart.state.tree.leaves import LeafType
from deeppart.testing.states import Box, difference
from tests.unit.state.saved_states import document_of, structure_of, target_of

Point = namedtuple("Point", "x y")
BASE = torch.arange(12.0)
STATE: dict[str, Any] = {
    "z": BASE,
    "view": BASE[2:8:2],
    "items": [1, BASE.numpy().copy(), (None, 2.5), Point(1, b"x"), *range(20), "tail"],
    "counts": Counter(a=2, b=1),
    "odd": OrderedDict({(1, "x"): 1, 2: 1 << 70, True: "true"}),
    "box": Box({"w": torch.zeros(2, 0)}),
}


def document(**changes: Any) -> dict[str, Any]:
    return document_of(flatten(STATE)) | changes


def test_what_was_written_is_read_as_it_was() -> None:
    structure, flat = structure_of(STATE, own=["z", "items/2/1"]), flatten(STATE)
    found = build(target_of(structure), dict(enumerate(flat.data)), structure.tree)
    expected = STATE | {"items": [*STATE["items"][:2], (None, None), *STATE["items"][3:]]}
    assert difference(expected, found) is None
    paths = structure.array_paths()
    assert [leaf.path for leaf in flat.arrays] == paths
    assert [paths[index] for index in np.flatnonzero(structure.per_rank)] == [("z",)]
    assert structure.per_rank_values.sum() == 1
    (alias,) = structure.aliases.items()
    assert alias == (paths.index(("view",)), Alias(paths.index(("z",)), 8, (2,)))
    assert structure.rank0 == frozenset() and not structure.has_apart and structure.shared is None


def test_a_later_version_is_told() -> None:
    with pytest.raises(NewerFormatError, match="upgrade"):
        decode_structure({"version": STRUCTURE_VERSION + 1}, "here")


def in_leaf(index: int, place: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        found["leaves"][index][place] = value

    return change


def put(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        found[key] = value

    return change


#: Leaves by number: box/w, items/1, view, z.
DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no version": lambda found: found.pop("version"),
    "no tree": lambda found: found.pop("tree"),
    "no values": lambda found: found.pop("values"),
    "no numbers of per-rank values": lambda found: found.pop("per_rank_values"),
    "a negative version": put("version", -1),
    "a version in words": put("version", "3"),
    "apart is a number": put("apart", 1),
    "rank0 is no list": put("rank0", {"x": 1}),
    "a path of rank0 is no path": put("rank0", [[["no tag", 1]]]),
    "a per-rank value that is none": put("per_rank_values", [99]),
    "a per-rank value below 0": put("per_rank_values", [-1]),
    "a leaf too many": lambda found: found["leaves"].append(["torch", "float32", [1], 0]),
    "a leaf too few": lambda found: found["leaves"].pop(0),
    "a value too many": lambda found: found["values"].append(1),
    "a leaf named twice": put("tree", ["l", [["a", index] for index in (0, 1, 2, 3, 3)]]),
    "a leaf that is not there": put("tree", ["l", [["a", index] for index in (0, 1, 2, 4)]]),
    "a node of no kind": put("tree", ["x", []]),
    "a node without a kind": put("tree", []),
    "a node that is a text": put("tree", "a0"),
    "keys that are no values": put("tree", ["d", [["x"]], [["a", 0]], None]),
    "more keys than children": put("tree", ["d", ["x", "y"], [["a", 0]], None]),
    "values beyond the last": put("tree", ["l", [["v", 0, 1000]]]),
    "a row of a negative number": put("tree", ["l", [["v", 0, -1]]]),
    "a row of a fraction": put("tree", ["l", [["v", 0, 1.5]]]),
    "own twice": in_leaf(0, 3, 2),
    "own by a truth value": in_leaf(0, 3, True),
    "another kind": in_leaf(0, 0, "jax"),
    "another dtype": in_leaf(0, 1, "float1"),
    "a negative length": in_leaf(0, 2, [-1]),
    "a view beyond its owner": in_leaf(2, 4, [3, 40, [2]]),
    "a view of nothing": in_leaf(2, 4, [9, 8, [2]]),
    "a view of itself": in_leaf(2, 4, [2, 0, [1]]),
    "a view of the other kind": in_leaf(2, 4, [1, 0, [1]]),
    "a view between elements": in_leaf(2, 4, [3, 2, [1]]),
    "a view of too few steps": in_leaf(2, 4, [3, 8, []]),
    "a view that is none": in_leaf(2, 4, [3, 8]),
    "a view that steps back": in_leaf(2, 4, [3, 8, [-1]]),
    "two views at once": lambda found: found["leaves"][2].append([3, 8, [2]]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_no_writer_makes_is_damage(name: str) -> None:
    found = document()
    decode_structure(found, "here")
    DAMAGE[name](found)
    with pytest.raises(CorruptFileError) as caught:
        decode_structure(found, "here")
    assert caught.value.where == "here"


# --- names of classes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a b", "a.b", "1a", "class", "None", "a\n", 5, None], ids=repr)
def test_no_class_is_called_so(name: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        decode_tree(["n", name, ["x"], [["a", 0]]], 0, "here")


@pytest.mark.parametrize("fields", [["x", "x"], ["a b"], [""], [5], ["x", "y"], [], "x", ["\ufb01", "fi"]], ids=repr)
def test_no_class_has_these_fields(fields: Any) -> None:
    children = [["a", index] for index in range(2 if fields in (["x", "x"], ["\ufb01", "fi"]) else 1)]
    with pytest.raises((ValueError, TypeError)):
        decode_tree(["n", "Point", fields, children], 0, "here")


@pytest.mark.parametrize("keys", [[1, True], [1, 1.0], ["a", "a"], [["tuple", [1]], ["tuple", [1.0]]]], ids=repr)
def test_keys_that_are_one_key_of_a_dict(keys: list[Any]) -> None:
    with pytest.raises(ValueError, match="repeated"):
        decode_tree(["d", keys, [["a", 0], ["a", 1]], None], 0, "here")


# --- the pieces -------------------------------------------------------------------------------------------------------


# --- how deep, and how long -------------------------------------------------------------------------------------------


def nested(depth: int, key: Any = 0) -> SavedNode:
    node: SavedNode = SavedArray(0)
    for _ in range(depth):
        node = SavedBranch("dict", (key,), (node,))
    return node


def test_nesting_ends_where_a_state_may_not_be_deeper() -> None:
    check_nesting(nested(DEEPEST_NESTING))
    with pytest.raises(ValueError, match=f"more than {DEEPEST_NESTING} containers"):
        check_nesting(nested(DEEPEST_NESTING + 1))


# --- views ------------------------------------------------------------------------------------------------------------

OWNER, VIEW = LeafType("torch", "float32", (12,)), LeafType("torch", "float32", (3,))

VIEWS: dict[str, tuple[LeafType, Alias, bool]] = {
    "up to the end": (VIEW, Alias(0, 36, (1,)), True),
    "one beyond the end": (VIEW, Alias(0, 40, (1,)), False),
    "steps up to the end": (VIEW, Alias(0, 4, (5,)), True),
    "a step beyond the end": (VIEW, Alias(0, 8, (5,)), False),
    "one element many times": (VIEW, Alias(0, 44, (0,)), True),
    "another dtype": (LeafType("torch", "int16", (3,)), Alias(0, 42, (1,)), True),
    "between elements": (VIEW, Alias(0, 2, (1,)), False),
    "nothing at the end": (LeafType("torch", "float32", (0,)), Alias(0, 48, (1,)), True),
    "nothing beyond the end": (LeafType("torch", "float32", (0,)), Alias(0, 52, (1,)), False),
    "of the other kind": (LeafType("numpy", "<f4", (3,)), Alias(0, 0, (1,)), False),
    "a free step": (replace(VIEW, shape=(1,)), Alias(0, 0, (1 << 40,)), True),
    "a free step that is no number of bytes": (replace(VIEW, shape=(1,)), Alias(0, 0, (1 << 61,)), False),
    "too few steps": (VIEW, Alias(0, 0, ()), False),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_lies_within_its_owner(name: str) -> None:
    kind, alias, good = VIEWS[name]
    if good:
        check_aliases([OWNER, kind], {1: alias})
    else:
        with pytest.raises(ValueError, match=r"leaf 1|zip"):
            check_aliases([OWNER, kind], {1: alias})


def test_an_owner_is_no_view_itself() -> None:
    with pytest.raises(ValueError, match="leaf 2 does not lie inside leaf 1"):
        check_aliases([OWNER, VIEW, VIEW], {1: Alias(0, 0, (1,)), 2: Alias(1, 0, (1,))})
