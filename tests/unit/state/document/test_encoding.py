"""Containers and keys are written so that they can be loaded and restored as they were, and exactly as documented."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, namedtuple
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import UnsupportedLeafError
from deeppart.state.document.structure import Alias, SavedSharded
from deeppart.state.document.structure_json import (
    STRUCTURE_VERSION,
    decode_structure,
    encode_path,
    encode_structure,
    encode_tree,
)
from deeppart.state.tree.flat import ApartRules, Branch
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.leaves import LeafType
from deeppart.state.tree.paths import exact
from deeppart.state.tree.runs import LEAST_ITEMS
from deeppart.testing.states import Box, difference
from tests.unit.round_trip import both_ways, config, restore, save, wrapped

Point = namedtuple("Point", "x y")
named: Any = namedtuple  # for types that are made in the middle of an expression, which mypy cannot follow
HUGE = 7**20000  # 16,903 digits; str() of an int refuses beyond 4,300


class Typed(NamedTuple):
    weight: Any
    name: str = "w"


CONTAINERS = {
    "empty dict": {},
    "empty list": [],
    "empty tuple": (),
    "empties": {"a": {}, "b": [], "c": (), "d": OrderedDict(), "e": Counter(), "f": [[], {}], "g": ((),)},
    "insertion order": {"z": 1, "a": torch.ones(2), "m": 3},
    "odict order": OrderedDict([("z", 1), ("a", 2)]),
    "counter": Counter({3: 2, 7: 1, "x": -4, (1, 2): 0}),
    "namedtuple": Point(torch.arange(3), Point(1, [2])),
    "typed namedtuple": Typed(torch.arange(3.0)),
    "renamed fields": named("R", "a class def", rename=True)(1, 2, torch.ones(1)),
    "tuple of tuples": (1, (2, (3, torch.ones(2)), ()), [(), ((),)]),
    "list of everything": [1, "a", None, 2.5, b"x", torch.ones(1), np.ones(1), [0], {"k": 0}, (0,)],
    "same key text": {1: "int", "1": "str", b"1": "bytes", 1.5: "float", "1.5": "text", (1,): "tuple"},
    "bool keys": {True: torch.ones(1), False: torch.zeros(1), 2: "two"},
    "separators": {"a.b": 1, "a/b": 2, "a": {"b": 3}, "a~1b": 4, "~": 5, "~0": 6, "": 7, "/": 8, ".": 9},
    "odd keys": {None: 1, -1: 2, (): 3, (1, (2, "x"), None): 4, b"\xff\x00": 5, "\0": 6, "ä": 7, "\ud800": 8},
    "float keys": {0.5: 1, math.inf: 2, -math.inf: 3, 5e-324: 4, -0.0: 5},
    "value keys": {torch.float32: 1, torch.device("cpu"): 2, torch.Size([2]): 3, np.int8(3): 4, 2j: 5},
    "huge keys": {HUGE: torch.ones(2), -HUGE: 1, (HUGE,): 2, "x": 3},
    "many int keys": {i: torch.full((1,), float(i)) for i in (10, 9, 100, 2, -5)},
    "numeric text": {"10": 1, "9": 2, "0" * 5000 + "1": 3},
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_and_keys(tmp_path: Path, name: str) -> None:
    both_ways(tmp_path, wrapped(CONTAINERS[name]))


@pytest.mark.parametrize("name", [n for n in CONTAINERS if n not in ("tuple of tuples", "typed namedtuple")])
def test_any_container_can_be_the_root(tmp_path: Path, name: str) -> None:
    state = CONTAINERS[name]
    save(tmp_path, state)
    assert difference(state, deeppart.load(tmp_path / "ckpt")) is None


def test_a_leaf_can_be_the_root(tmp_path: Path) -> None:
    save(tmp_path, torch.arange(5))
    assert difference(torch.arange(5), deeppart.load(tmp_path / "ckpt")) is None
    live = restore(tmp_path, torch.zeros(5, dtype=torch.int64))
    assert live.tolist() == [0, 1, 2, 3, 4]


def test_a_namedtuple_comes_back_from_load_with_its_name_and_fields(tmp_path: Path) -> None:
    loaded = both_ways(tmp_path, wrapped(Point(1, 2)))["item"]
    assert type(loaded).__name__ == "Point" and loaded._fields == ("x", "y") and type(loaded) is not Point


def test_a_live_namedtuple_keeps_its_class(tmp_path: Path) -> None:
    class Careful(namedtuple("Careful", "x y")):
        def __new__(cls, both: int) -> Careful:
            return super().__new__(cls, both, both)

    save(tmp_path, wrapped(Careful(3)))
    live = restore(tmp_path, wrapped(Careful(0)))["item"]
    assert type(live) is Careful and tuple(live) == (3, 3)


def test_deep_nesting(tmp_path: Path) -> None:
    state: Any = torch.ones(2)
    for depth in range(60):
        state = [{"d": (state,)}, Point(depth, OrderedDict(z=1))]
    both_ways(tmp_path, wrapped(state))


def test_order_of_dicts_is_that_of_each_checkpoint(tmp_path: Path) -> None:
    """The structure is cached between checkpoints; the order of an OrderedDict (an LRU cache, say) may change."""
    recent, plain = OrderedDict(a=torch.zeros(1), b=1, c=2), {"x": 1, "y": 2}
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        for step, key in enumerate("acb"):
            recent.move_to_end(key)
            plain["x"] = plain.pop("x")
            state = {"recent": recent, "plain": plain}
            ck.checkpoint(state, step=step).wait(timeout=200)
            assert difference(state, deeppart.load(tmp_path / "ckpt", step)) is None
        live = OrderedDict(c=0, b=0, a=torch.ones(1))
        ck.restore({"recent": live, "plain": {"y": 0, "x": 0}})
    assert list(live) == list(recent)


# --- the JSON that stands for them ------------------------------------------------------------------------------------


def tree_of(state: Any, first: tuple[int, int] = (0, 0), cuts: ApartRules | None = None) -> Any:
    """The tree as it stands in a file."""
    return json.loads(json.dumps(encode_tree(flatten(state, cuts=cuts).root, first)))


ARRAY_LEAF, NUMPY_LEAF = torch.ones(2), np.ones(2)
#: As docs/format.md describes them.
NODES: dict[str, tuple[Any, Any]] = {
    "a leaf": (ARRAY_LEAF, ["a", 0]),
    "a value": (None, ["v", 0]),
    "a dict in the order of its keys, by numbers in canonical order": (
        {"z": 1, "a": ARRAY_LEAF, "m": NUMPY_LEAF},
        ["d", ["z", "a", "m"], [["v", 0], ["a", 0], ["a", 1]], None],
    ),
    "an ordered dict": (OrderedDict(b=1, a=2), ["o", ["b", "a"], [["v", 1], ["v", 0]], None]),
    "a counter": (Counter(b=1), ["c", ["b"], [["v", 0]], None]),
    "keys that JSON lacks": (
        {(1, "a"): 1, 2j: 2},
        ["d", [["tuple", [1, "a"]], ["complex", "0000000000000000" + "4000000000000000"]], [["v", 1], ["v", 0]], None],
    ),
    "a list": ([ARRAY_LEAF, 1], ["l", [["a", 0], ["v", 0]]]),
    "a tuple": ((1, [2]), ["t", [["v", 0], ["l", [["v", 1]]]]]),
    "a namedtuple": (named("P", "x y")(1, ARRAY_LEAF), ["n", "P", ["x", "y"], [["v", 0], ["a", 0]]]),
    "an object": (Box([1]), ["s", "deeppart.testing.states.Box", ["l", [["v", 0]]]]),
    "empty ones": ([{}, (), []], ["l", [["d", [], [], None], ["t", []], ["l", []]]]),
    "a run": ([*range(LEAST_ITEMS)], ["v", 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", NODES)
def test_nodes_are_as_documented(name: str) -> None:
    state, expected = NODES[name]
    assert tree_of(state) == expected


def test_names_of_versions_in_a_state_dict_are_kept_and_nothing_else_of_it() -> None:
    state = OrderedDict(w=1)
    state._metadata = OrderedDict(  # type: ignore[attr-defined]
        {"": {"version": 1}, "0.bn": {"version": 2, "kind": "x", "more": [1], 5: 6}}
    )
    assert tree_of(state)[3] == {"": {"version": 1}, "0.bn": {"version": 2, "kind": "x"}}


@pytest.mark.parametrize("metadata", [None, [1], {5: {}}, {"": 1}], ids=repr)
def test_what_is_no_metadata_of_torch_is_left_out(metadata: Any) -> None:
    state = OrderedDict(w=1)
    state._metadata = metadata  # type: ignore[attr-defined]
    assert tree_of(state) == ["o", ["w"], [["v", 0]], None]


@pytest.mark.parametrize("count", [LEAST_ITEMS - 1, LEAST_ITEMS])
def test_many_values_in_a_row_are_one_entry(count: int) -> None:
    """Beside an array, else they were a run."""
    row = [["v", 0, count]] if count == LEAST_ITEMS else [["v", index] for index in range(count)]
    assert tree_of([*range(count), ARRAY_LEAF, "x"]) == ["l", [*row, ["a", 0], ["v", count]]]
    assert tree_of((ARRAY_LEAF, *range(count))) == ["t", [["a", 0], *row]]


def test_numbers_begin_where_others_end() -> None:
    state = [ARRAY_LEAF, 1, {"a": NUMPY_LEAF}, Box((2,))]
    name = "deeppart.testing.states.Box"
    shifted = [["a", 10], ["v", 20], ["d", ["a"], [["a", 11]], None], ["s", name, ["t", [["v", 21]]]]]
    assert tree_of(state, (10, 20)) == ["l", shifted]
    row: list[Any] = [ARRAY_LEAF, *range(LEAST_ITEMS)]
    assert tree_of(row, (10, 20)) == ["l", [["a", 10], ["v", 20, LEAST_ITEMS]]]


def test_what_is_each_ranks_own_has_a_mark_in_a_list_and_no_key_in_a_dict() -> None:
    state = {"own": 1, "items": [1, {"x": ARRAY_LEAF}, 2]}
    cuts = ApartRules(mine=frozenset({exact(("own",)), exact(("items", 1))}))
    assert tree_of(state, cuts=cuts) == ["d", ["items"], [["l", [["v", 0], ["r"], ["v", 1]]]], None]
    assert tree_of({"own": 1}, cuts=ApartRules(mine=frozenset({()}))) == ["r"]


def test_what_is_rank_0s_is_written_out_on_rank_0_and_marked_elsewhere() -> None:
    state = [1, {"x": ARRAY_LEAF}]

    def is_best(path: Any, inner: bool) -> bool:
        return bool(path == (1,))

    assert tree_of(state, cuts=ApartRules(rank0=is_best)) == ["l", [["v", 0], ["d", ["x"], [["a", 0]], None]]]
    assert tree_of(state, cuts=ApartRules(rank0=is_best, leads=False)) == ["l", [["v", 0], ["r"]]]


def test_a_branch_of_no_known_kind_is_a_fault_of_the_library() -> None:
    with pytest.raises(KeyError):
        encode_tree(Branch("set", {1}, (), []))


def test_the_document_has_each_field_as_documented() -> None:
    types = [LeafType("torch", "float32", (3, 2)), LeafType("numpy", "<f8", ()), LeafType("torch", "float32", (2,))]
    own, own_values = np.array([False, True, False]), np.array([True, False])
    found = encode_structure(
        ["a", 0], types, own, {2: Alias(0, 8, (1,))}, [5, ["int", "1"]], own_values, [["best"]], True
    )
    assert json.loads(json.dumps(found)) == {
        "version": 3,  # which older libraries read
        "tree": ["a", 0],
        "leaves": [["torch", "float32", [3, 2], 0], ["numpy", "<f8", [], 1], ["torch", "float32", [2], 0, [0, 8, [1]]]],
        "values": [None, ["int", "1"]],
        "per_rank_values": [0],
        "rank0": [["best"]],
        "apart": True,
    }


def test_with_sharded_tensors_it_is_of_a_newer_version() -> None:
    nothing, tree = np.zeros(0, dtype=np.bool_), ["l", [["h", 1], ["h", 0]]]
    whole = [LeafType("torch", "float32", (3, 2)), LeafType("torch", "int64", ())]
    found = json.loads(json.dumps(encode_structure(tree, [], nothing, {}, [], nothing, [], True, whole)))
    assert (found["version"], STRUCTURE_VERSION) == (4, 5)
    assert found["sharded"] == [["torch", "float32", [3, 2]], ["torch", "int64", []]]
    decoded = decode_structure(found, "here")
    assert decoded.sharded == tuple(whole)
    assert list(decoded.walk()) == [((0,), SavedSharded(1)), ((1,), SavedSharded(0))]


def test_leaves_and_what_is_known_of_them_have_to_be_as_many() -> None:
    kind = LeafType("torch", "float32", (3,))
    with pytest.raises(ValueError, match="zip"):
        encode_structure(["a", 0], [kind], np.zeros(2, dtype=np.bool_), {}, [], np.zeros(0, dtype=np.bool_), [], False)


def test_paths_keep_the_type_of_each_key() -> None:
    assert encode_path(()) == []
    assert encode_path(("a/b", 1, True, None, (1, "x"), 1 << 70)) == [
        "a/b", 1, True, None, ["tuple", [1, "x"]], ["int", format(1 << 70, "x")],
    ]  # fmt: skip
    with pytest.raises(UnsupportedLeafError, match="a dict key"):
        encode_path((object(),))
