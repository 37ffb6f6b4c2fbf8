"""The structure document: states come back through it as they were, and what no writer makes is damage."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import CorruptFileError
from deeppart.state.document.part_document import PartDocument
from deeppart.state.document.structure import Structure
from deeppart.state.document.structure_json import (
    Numbers,
    check_aliases,
    check_nesting,
    decode_structure,
    encode_tree,
)
from deeppart.state.paths.keys import readable
from deeppart.state.restore.building import build
from deeppart.state.restore.target import Target
from deeppart.state.tensors.leaves import LeafType, leaf_type
from deeppart.state.tree import ArrayLeaf, Branch, Node, units_of
from deeppart.state.tree.flat import FlatState, RankLocalRules
from deeppart.state.tree.flattening import DEEPEST_NESTING, flatten
from deeppart.state.tree.ties import Alias, find_aliases
from deeppart.state.values import encode_value
from tests.states import Box, difference
from tests.unit.round_trip import both_ways, config, restore, save, wrapped

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")
Point = namedtuple("Point", "x y")
named: Any = namedtuple  # for types that are made in the middle of an expression, which mypy cannot follow
HUGE = 7**20000  # 16,903 digits; str() of an int refuses beyond 4,300


def document_of(flat: FlatState, own: Collection[str] = ()) -> dict[str, Any]:
    """The structure document of a state; ``own``: readable paths of what is each rank's own."""
    types = [leaf_type(data) for data in flat.data]
    values = [encode_value(leaf.value, readable(leaf.path)) for leaf in flat.values]
    per_rank = np.array([readable(leaf.path) in own for leaf in flat.leaves], dtype=np.bool_)
    document = PartDocument(encode_tree(flat.root), types, values, find_aliases(flat, types), per_rank, True)
    found: dict[str, Any] = json.loads(json.dumps(document.structure()))
    return found


def structure_of(state: Any, own: Collection[str] = ()) -> Structure:
    """A state's structure, as it is read from a file."""
    return decode_structure(document_of(flatten(state), own), "here")


def target_of(structure: Structure) -> Target:
    """Where all of it goes, with nothing matched yet."""
    return Target(structure, dict(structure.types), dict(structure.values))


class Typed(NamedTuple):
    weight: Any
    name: str = "w"


CONTAINERS = {
    "empties": {"a": {}, "b": [], "c": (), "d": OrderedDict(), "e": Counter(), "f": [[], {}], "g": ((),)},
    "counter": Counter({3: 2, 7: 1, "x": -4, (1, 2): 0}),
    "typed namedtuple": Typed(torch.arange(3.0)),
    "renamed fields": named("R", "a class def", rename=True)(1, 2, torch.ones(1)),
    "same key text": {1: "int", "1": "str", b"1": "bytes", 1.5: "float", "1.5": "text", (1,): "tuple"},
    "separators": {"a.b": 1, "a/b": 2, "a": {"b": 3}, "a~1b": 4, "~": 5, "~0": 6, "": 7, "/": 8, ".": 9},
    "odd keys": {None: 1, -1: 2, (): 3, (1, (2, "x"), None): 4, b"\xff\x00": 5, "\0": 6, "ä": 7, "\ud800": 8},
    "float keys": {0.5: 1, math.inf: 2, -math.inf: 3, 5e-324: 4, -0.0: 5},
    "value keys": {torch.float32: 1, torch.device("cpu"): 2, torch.Size([2]): 3, np.int8(3): 4, 2j: 5},
    "huge keys": {HUGE: torch.ones(2), -HUGE: 1, (HUGE,): 2, "x": 3},
    "numeric text": {"10": 1, "9": 2, "0" * 5000 + "1": 3},
}


def test_containers_and_keys(tmp_path: Path) -> None:
    both_ways(tmp_path, CONTAINERS)


def test_a_namedtuple_is_loaded_with_its_name_and_fields_and_keeps_its_live_class(tmp_path: Path) -> None:
    class Careful(namedtuple("Careful", "x y")):
        def __new__(cls, both: int) -> Careful:
            return super().__new__(cls, both, both)

    save(tmp_path, wrapped(Careful(3)))
    loaded = deeppart.load(tmp_path / "ckpt")["item"]
    assert type(loaded).__name__ == "Careful" and loaded._fields == ("x", "y") and type(loaded) is not Careful
    live = restore(tmp_path, wrapped(Careful(0)))["item"]
    assert type(live) is Careful and tuple(live) == (3, 3)


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


def tree_of(state: Any, first: int = 0, cuts: RankLocalRules | None = None) -> Any:
    """The tree as it stands in a file."""
    return json.loads(json.dumps(encode_tree(flatten(state, cuts=cuts).root, Numbers(range(first, 1000)))))


def test_names_of_versions_in_a_state_dict_are_kept_and_nothing_else_of_it() -> None:
    state = OrderedDict(w=1)
    state._metadata = OrderedDict(  # type: ignore[attr-defined]
        {"": {"version": 1}, "0.bn": {"version": 2, "kind": "x", "more": [1], 5: 6}}
    )
    assert tree_of(state)[1] == {"": {"version": 1}, "0.bn": {"version": 2, "kind": "x"}}


@pytest.mark.parametrize("metadata", [None, [1], {5: {}}, {"": 1}], ids=repr)
def test_what_is_no_metadata_of_torch_is_left_out(metadata: Any) -> None:
    state = OrderedDict(w=1)
    state._metadata = metadata  # type: ignore[attr-defined]
    assert tree_of(state) == ["odict", None, ["w"], [0]]


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
    paths = structure.paths()
    assert [leaf.path for leaf in flat.leaves] == paths
    assert [paths[index] for index in np.flatnonzero(structure.per_rank)] == [("z",), ("items", 2, 1)]
    (alias,) = structure.aliases.items()
    assert alias == (paths.index(("view",)), Alias(paths.index(("z",)), 8, (2,)))
    assert structure.rank0 == frozenset() and not structure.has_rank_local


def in_leaf(index: int, place: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        found["leaves"][index][place : place + 1] = [value]

    return change


def put(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        found[key] = value

    return change


#: Leaves by number: box/w, items/1, view, z; then values.
DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no tree": lambda found: found.pop("tree"),
    "no leaves": lambda found: found.pop("leaves"),
    "no rank0": lambda found: found.pop("rank0"),
    "no rank_local": lambda found: found.pop("rank_local"),
    "no divisions": lambda found: found.pop("boxes"),
    "no numbers of what is per rank": lambda found: found.pop("per_rank"),
    "rank_local is a number": put("rank_local", 1),
    "rank0 is no list": put("rank0", {"x": 1}),
    "a path of rank0 is no path": put("rank0", [[["no tag", 1]]]),
    "a per-rank value that is none": put("per_rank", [99]),
    "a per-rank value below 0": put("per_rank", [-1]),
    "a per-rank value by a truth value": put("per_rank", [True]),
    "a leaf too many": lambda found: found["leaves"].append(["torch", "float32", [1]]),
    "a leaf too few": lambda found: found["leaves"].pop(0),
    "a value too many": lambda found: found["leaves"].append(["value", 1]),
    "a value of two": lambda found: found["leaves"][-1].append(1),
    "a value of none": lambda found: found["leaves"][-1].pop(),
    "a leaf that is no list": lambda found: found["leaves"].append({"value": 1, "x": 1}),
    "a leaf named twice": lambda found: found["tree"][3].append(3),
    "a leaf that is not there": lambda found: found["tree"][3].append(99),
    "a node of no kind": put("tree", ["x", None, None, []]),
    "a node without a kind": put("tree", []),
    "a node that is a text": put("tree", "a0"),
    "keys that are no values": put("tree", ["dict", None, [["x"]], [0]]),
    "more keys than children": put("tree", ["dict", None, ["x", "y"], [0]]),
    "a negative number": put("tree", ["list", None, None, [-1]]),
    "a fraction": put("tree", ["list", None, None, [1.5]]),
    "a truth value": put("tree", ["list", None, None, [True]]),
    "another kind": in_leaf(0, 0, "jax"),
    "another dtype": in_leaf(0, 1, "float1"),
    "a negative length": in_leaf(0, 2, [-1]),
    "a view beyond its owner": in_leaf(2, 3, [3, 40, [2]]),
    "a view of itself": in_leaf(2, 3, [2, 0, [1]]),
    "a view that is none": in_leaf(2, 3, [3, 8]),
    "a view that steps back": in_leaf(2, 3, [3, 8, [-1]]),
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


def nested(depth: int, key: Any = 0) -> Node:
    node: Node = ArrayLeaf(0)
    for _ in range(depth):
        node = Branch("dict", (key,), (node,))
    return node


def test_nesting_ends_where_a_state_may_not_be_deeper() -> None:
    check_nesting(nested(DEEPEST_NESTING))
    with pytest.raises(ValueError, match=f"more than {DEEPEST_NESTING} nested containers"):
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
        check_aliases({0: OWNER, 1: kind}, {1: alias})
    else:
        with pytest.raises(ValueError, match=r"leaf 1|zip"):
            check_aliases({0: OWNER, 1: kind}, {1: alias})


def test_an_owner_is_no_view_itself() -> None:
    with pytest.raises(ValueError, match="leaf 2 is not inside leaf 1"):
        check_aliases({0: OWNER, 1: VIEW, 2: VIEW}, {1: Alias(0, 0, (1,)), 2: Alias(1, 0, (1,))})


COO, RAGGED = ["indices", "values", "shape", "coalesced"], ["values", "offsets", "lengths", "ragged_dim"]
A, B, V, W = range(4)  # two leaves, two values
EMPTY: list[Any] = ["dict", None, [], []]
NODES: list[Any] = [
    ["sparse_coo", None, COO],
    ["sparse_coo", None, COO, [A, B, V, W], None],
    ["sparse_coo", "name", COO, [A, B, V, W]],
    ["sparse_coo", 5, COO, [A, B, V, W]],
    ["sparse_coo", None, COO[:3], [A, B, V, W]],
    ["sparse_coo", None, COO, [A, B, V]],
    ["sparse_coo", None, COO, {"indices": A}],
    ["sparse_coo", None, COO[::-1], [W, V, B, A]],
    ["sparse_coo", None, COO, [A, V, B, W]],
    ["sparse_coo", None, COO, [A, ["list", None, None, [B]], V, W]],
    ["sparse_coo", None, ["indices", "values", "shape", 5], [A, B, V, W]],
    ["sparse_coo", None, "abcd", [A, B, V, W]],
    ["sparse_odd", None, COO, [A, B, V, W]],
    ["dict", "", COO, [A, B, V, W]],
    [None, None, COO, [A, B, V, W]],
    [["sparse_coo"], None, COO, [A, B, V, W]],
    ["jagged", None, RAGGED, [A, V, B, W]],
    ["jagged", None, RAGGED, [A, B, ["tuple", None, None, [V]], W]],
    ["subclass", "c", ["a", "b", "context", "context"], [A, B, V, W]],
    ["subclass", "c", ["a", "b", "c", "d"], [A, B, V, W]],
    ["subclass", "c", ["a", "b", "context"], [A, ["list", None, None, [B, W]], V]],
    ["subclass", "c", ["a", "b", "context"], [A, EMPTY, V]],
    ["subclass", "c", ["context"], [V]],
    ["subclass", "c", ["a", "context"], [V, A]],
    ["subclass", "c", [], []],
    ["pickle", [], None, [["list", None, None, []]]],
    ["deque", [], None, [["list", None, None, []]]],
    ["namespace", [1], None, [EMPTY]],
    ["deque", [-1], None, [["list", None, None, []]]],
    ["deque", [True], None, [["list", None, None, []]]],
    ["dataclass", ["m", 5, []], None, [EMPTY]],
    ["dataclass", ["m", "C", "ab"], None, [EMPTY]],
    ["dataclass", ["m", "C", [1]], None, [EMPTY]],
    ["dataclass", ["m", "C\0", []], None, [EMPTY]],
    ["registered", ["\ud800"], None, [EMPTY]],
    ["deque", None, None, [["list", None, None, []]]],
    ["deque", [None], None, []],
    ["deque", [None], None, [EMPTY, EMPTY]],
    ["deque", [None], [], [EMPTY]],
    ["object", "c", None, []],
    ["object", "c", ["x"], [A]],
    ["object", None, None, [A]],
    ["list", 5, None, [A]],
    ["list", None, ["x"], [A]],
    ["list", None, None, "a"],
    ["r", 5],
    *(["namedtuple", name, ["x"], [A]] for name in ("", "a b", "a.b", "1a", "class", "None", "a\n", 5, None)),
    *(["namedtuple", "Point", fields, [A]] for fields in (["a b"], [""], [5], ["x", "y"], [], "x")),
    *(["namedtuple", "Point", fields, [A, B]] for fields in (["x", "x"], ["\ufb01", "fi"])),
    *(["dict", None, keys, [A, B]] for keys in ([1, True], [1, 1.0], ["a", "a"], [["tuple", [1]], ["tuple", [1.0]]])),
]


@pytest.mark.parametrize("node", NODES, ids=lambda node: json.dumps(node)[:60])
def test_a_node_that_no_writer_means(node: Any) -> None:
    leaves = [["torch", "float32", [3]]] * 2 + [["value", 1]] * 2
    document = {"leaves": leaves, "per_rank": [], "rank0": [], "rank_local": False, "boxes": []}
    decode_structure({**document, "tree": ["list", None, None, [A, B, V, W]]}, "here")
    left = [number for number in range(4) if number not in _numbers_of(node)]
    with pytest.raises(CorruptFileError) as caught:
        decode_structure({**document, "tree": ["list", None, None, [node, *left]]}, "here")
    assert len(str(caught.value)) < 2000


def _numbers_of(node: Any) -> set[Any]:
    """The numbers in the children of a node, to any depth."""
    if not isinstance(node, list):
        return {node}
    children = node[3] if len(node) > 3 and isinstance(node[3], list) else []
    return {number for child in children for number in _numbers_of(child)}


def units(state: Any, *, none: bool = False) -> list[tuple[tuple[Any, ...], set[int]]]:
    """Those that hold any of the state's leaves and values, or none of them."""
    structure = structure_of(state)
    return units_of(structure.tree, set() if none else set(range(len(structure))))


def test_the_outermost_tuple_is_one() -> None:
    tensor = torch.zeros(2)
    ((path, numbers),) = units({"a": ([1, tensor], (tensor + 1, 2)), "b": [tensor + 2]})
    assert path == ("a",) and len(numbers) == 4, "two tensors, and two numbers"
    assert units({"a": ([1, tensor],)}, none=True) == []


def test_the_state_itself_and_what_holds_objects_is_none() -> None:
    tensor = torch.zeros(2)
    assert units((tensor, 1)) == []
    assert units({"a": (Box({"w": tensor}), tensor + 1)}) == []
    ((path, _),) = units({"a": (Box({"w": (tensor, 1)}), tensor + 1)})
    assert path == ("a", 0, "w")
