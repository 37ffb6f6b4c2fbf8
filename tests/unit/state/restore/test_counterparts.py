"""The saved and the live side of a place, in one form."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, deque, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.state.document.structure import SavedArray, SavedBranch, SavedNode, SavedValue
from deeppart.state.restore.target import both_plain, decode_values, inside_object, is_cut, is_lacking, meet
from deeppart.state.tree.flat import ArrayLeaf, Branch, Node, ValueLeaf
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.runs import LEAST_ITEMS, LEAST_ROWS
from deeppart.testing.states import Box, difference
from tests.unit.state.restore.mismatches import check_brought_back, ones
from tests.unit.state.rows import changed, containers
from tests.unit.state.saved_states import structure_of

Point = namedtuple("Point", "x y")

GOOD: dict[str, Callable[[], tuple[Any, Any]]] = {
    "a number is nothing yet": lambda: ({"best": ones(()), "b": [ones(1, 1)], "n": np.float32(2.0) * np.ones(1)},
                                        {"best": 1e9, "b": [0], "n": True}),
    "none is nothing yet": lambda: ({"a": ones(2), "b": [1, {}], "c": (ones(1),)}, dict.fromkeys("abc")),
    "none in a tuple": lambda: ((ones(2), Point(1, ones(1))), (None, Point(0, None))),
    "none in an object": lambda: (Box({"a": [ones(2)], "b": None}), Box({"a": None, "b": 3})),
    "extra values at the end of a list go": lambda: ([1, 2], [9, 9, 9, 9]),
}  # fmt: skip


def grown(saved: Any) -> Any:
    """The same some steps later, with arrays of its own."""
    later = copy.deepcopy(saved)
    if isinstance(later, list):
        return [*later, *copy.deepcopy(later[:2])]
    return type(later)([("first", copy.deepcopy(later["1"])), *later.items(), ("new", copy.deepcopy(later["2"]))])


#: Of so many items. The longer ones are saved as one value.
LENGTHS = (3, LEAST_ITEMS, LEAST_ROWS - 1, LEAST_ROWS)
GROWING: dict[str, Callable[[int], Any]] = {
    "values": lambda n: list(range(n)),
    "rows": lambda n: [{"i": i, "of": [i]} for i in range(n)],
    "arrays": lambda n: [ones(2) for _ in range(n)],
    "rows of arrays": lambda n: [{"x": ones(2), "i": (i,)} for i in range(n)],
    "dict": lambda n: {str(i): i for i in reversed(range(n))},
    "table": lambda n: OrderedDict((str(i), [i]) for i in reversed(range(n))),
    "counts": lambda n: Counter({str(i): i for i in range(n)}),
}


@pytest.mark.filterwarnings("ignore:.*removed, since dicts of small values become what was saved")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("kind", GROWING)
def test_what_has_grown_since_comes_back_as_saved_at_every_length(tmp_path: Path, kind: str, strict: bool) -> None:
    saved = {str(n): GROWING[kind](n) for n in LENGTHS}
    saved["object"] = Box({"list": copy.deepcopy(saved["3"])})
    live = {str(n): grown(saved[str(n)]) for n in LENGTHS}
    live["object"] = Box({"list": grown(saved["3"])})
    containers = {name: id(container) for name, container in live.items()}
    with deeppart.Checkpointer(persistent_dir=str(tmp_path), timeout=20.0) as ck:
        ck.checkpoint({"s": saved}, step=1).wait(timeout=200)
        if strict or kind not in ("dict", "table"):
            ck.restore({"s": live}, strict=strict)
            assert difference(saved, live) is None and {name: id(each) for name, each in live.items()} == containers
            return
        with pytest.raises(deeppart.StructureMismatchError, match="large dict"):
            ck.restore({"s": live}, strict=False)
        small = {"3": live["3"]}
        ck.restore({"s": small}, strict=False)
        assert set(small["3"]) == {"0", "1", "2", "first", "new"}, "what the checkpoint lacks stays"


def test_entries_that_a_dict_loses_are_told(tmp_path: Path) -> None:
    live = {"x": torch.ones(1), "config": {"lr": 0.0, "new": True}}
    with deeppart.Checkpointer(persistent_dir=str(tmp_path), timeout=20.0) as ck:
        ck.checkpoint({"x": torch.ones(1), "config": {"lr": 1.0}}, step=1).wait(timeout=200)
        with pytest.warns(deeppart.DeeppartWarning, match="removed, .* config/new"):
            ck.restore(live)
    assert live["config"] == {"lr": 1.0}


def test_a_part_of_a_list_leaves_the_rest_as_it_is(tmp_path: Path) -> None:
    live = {"a": [0, 0, 7, 8], "b": [{"c": 0}, {"d": 0}, {"e": 9}]}
    with deeppart.Checkpointer(persistent_dir=str(tmp_path), timeout=20.0) as ck:
        ck.checkpoint({"a": [1, 2], "b": [{"c": 3}, {"d": 4}]}, step=1).wait(timeout=200)
        ck.restore(live, keys=["a/0", "b/1"])
        assert live == {"a": [1, 0, 7, 8], "b": [{"c": 0}, {"d": 4}, {"e": 9}]}
        with pytest.raises(deeppart.StructureMismatchError, match="only some items of a list"):
            ck.restore(live, exclude="a/3")


@pytest.mark.parametrize("name", GOOD)
def test_what_can_be_brought_back_is(tmp_path: Path, name: str) -> None:
    check_brought_back(tmp_path, *GOOD[name]())


@pytest.fixture
def ck(tmp_path: Path) -> Any:
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path / "ckpt"))) as made:
        yield made


def test_what_was_saved_item_by_item_meets_a_run_and_the_other_way_round(
    ck: deeppart.Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of before there were nested runs is what one is with a threshold that nothing reaches."""
    state = {"rows": [[place, "x"] for place in range(300)], "table": {place: {"a": [place]} for place in range(300)}}
    state["few"] = [{"a": 1}, {"b": (2, 3)}]
    for step, (saved, restored) in enumerate([(10**9, 256), (256, 10**9), (1, 10**9), (10**9, 1)]):
        monkeypatch.setattr("deeppart.state.tree.runs.LEAST_ROWS", saved)
        ck.checkpoint(state, step=step).wait()
        monkeypatch.setattr("deeppart.state.tree.runs.LEAST_ROWS", restored)
        live = changed(state)
        before = containers(live)
        assert ck.restore(live, step=step) == step
        assert difference(state, live) is None
        assert all(one is other for one, other in zip(before, containers(live), strict=True))
        assert difference(state, deeppart.load(ck.config.persistent_dir, step)) is None


def test_momentum_that_is_none_yet(ck: deeppart.Checkpointer) -> None:
    """Where the live state has None in a run, and tensors were saved, they are created."""
    ck.checkpoint({"s": {place: {"m": torch.ones(1)} for place in range(300)}}, step=1).wait()
    live: Any = {"s": {place: {"m": None} for place in range(300)}}
    row = live["s"][3]
    ck.restore(live)
    assert live["s"][3] is row and all(bool(each["m"] == 1) for each in live["s"].values())


# --- nothing there yet ------------------------------------------------------------------------------------------------

LACKING: list[tuple[Any, Any, bool]] = [
    (ones(3), None, True),
    (ones(()), 1e9, True),
    (ones(1, 1), 5, True),
    (np.ones(1), True, True),
    (ones(1), 2j, True),
    (ones(2), 1e9, False),
    (ones(0), 1e9, False),
    (ones(()), "5", False),
    (ones(()), np.float32(5), False),
    (ones(()), ones(()), False),
    (ones(()), [None], False),
    ([ones(1)], None, True),
    ({}, None, True),
    ((), None, True),
    ([ones(1)], 5, False),
    (5, None, False),
    (None, None, False),
    (Box({"a": 1}), None, False),
]


@pytest.mark.parametrize(("saved", "live", "lacking"), LACKING, ids=range(len(LACKING)))
def test_what_the_live_state_has_nothing_of(saved: Any, live: Any, lacking: bool) -> None:
    structure = structure_of({"x": saved})
    assert isinstance(structure.tree, SavedBranch)
    (node,) = structure.tree.children
    (root,) = children_of(flatten({"x": live}, live=True).root)
    assert is_lacking(node, root, structure.types) is lacking


# --- one form ---------------------------------------------------------------------------------------------------------


def children_of(node: Node) -> list[Node]:
    assert isinstance(node, Branch)
    return node.children


def sides(saved: Any, live: Any) -> tuple[SavedNode, Node, list[Any]]:
    structure = structure_of(saved)
    return structure.tree, flatten(live, live=True).root, decode_values(structure, "here")


def test_an_object_meets_what_its_state_dict_gives() -> None:
    content = {"a": torch.ones(2)}
    saved, live, _ = sides(Box(content), content)
    inner, same = inside_object(saved, live)
    assert isinstance(inner, SavedBranch) and inner.kind == "dict" and same is live
    saved, live, _ = sides(content, Box(content))
    outer, same = inside_object(saved, live)
    assert isinstance(outer, SavedBranch) and outer.kind == "object" and outer.children == (saved,) and same is live
    for one, other in ((content, content), (Box(content), Box(content))):
        saved, live, _ = sides(one, other)
        assert inside_object(saved, live) == (saved, live)


def test_a_list_that_was_saved_by_item_meets_one_that_is_a_run_here() -> None:
    short, long = [1, 2], list(range(LEAST_ITEMS))
    saved, live, values = sides(short, long)
    same, branch = meet(saved, live, values)
    assert same is saved and isinstance(branch, Branch)
    assert branch.kind == "list" and branch.container is long
    assert [(leaf.path, leaf.value) for leaf in branch.children if isinstance(leaf, ValueLeaf)] == [
        ((place,), item) for place, item in enumerate(long)
    ]


@pytest.mark.parametrize("live", [[1, 2], [], [5], (1, 2), {"a": 1}, OrderedDict(b=2)], ids=repr)
def test_a_run_meets_a_short_container_of_values(live: Any) -> None:
    saved, root, values = sides(list(range(LEAST_ITEMS)), live)
    assert isinstance(root, Branch)
    same, leaf = meet(saved, root, values)
    assert same is saved and isinstance(leaf, ValueLeaf) and leaf.value is live


@pytest.mark.parametrize("live", [[[1], [2]], [[1, ({"a": 2},)]], {"a": [1]}], ids=repr)
def test_a_run_of_rows_meets_rows_of_values_to_any_depth_and_a_flat_one_does_not(live: Any) -> None:
    rows, root, values = sides([[place] for place in range(LEAST_ROWS)], live)
    _, leaf = meet(rows, root, values)
    assert isinstance(leaf, ValueLeaf) and leaf.value is live
    flat, root, values = sides(list(range(LEAST_ITEMS)), live)
    assert meet(flat, root, values) == (flat, root), "whatever is in there is no small value"


@pytest.mark.parametrize(
    ("saved", "live"),
    [
        ([[place] for place in range(LEAST_ROWS)], [[torch.ones(1)]]),
        (list(range(LEAST_ITEMS)), [torch.ones(1)]),
        (list(range(LEAST_ITEMS)), Point(1, 2)),
        (5, [5]),
        ([1, 2], 5),
        (torch.ones(2), [1, 2]),
        ([1, 2], [1, 2]),
    ],
    ids=range(7),
)
def test_others_are_left_as_they_are(saved: Any, live: Any) -> None:
    node, root, values = sides(saved, live)
    one, other = meet(node, root, values)
    assert one is node and other is root


PLAIN: list[tuple[Any, Any, bool]] = [
    (1, 2, True),
    (1.5, "x", True),
    (None, True, True),
    (b"x", 1, False),
    (1, b"x", False),
    (np.int8(1), 1, False),
    (list(range(LEAST_ITEMS)), 1, False),
    (1, list(range(LEAST_ITEMS)), False),
    (1, torch.ones(()), False),
    (torch.ones(()), 1, False),
    ([1], 1, False),
]


@pytest.mark.parametrize(("saved", "live", "plain"), PLAIN, ids=range(len(PLAIN)))
def test_values_that_only_replace_each_other(saved: Any, live: Any, plain: bool) -> None:
    assert both_plain(*sides(saved, live)) is plain


CUT: list[tuple[Any, Any, bool, bool]] = [  # saved, live, as a record too?
    ([1], [1, torch.ones(1), [torch.ones(1)], {"a": 1}], True, True),
    ([1], [1, torch.Generator()], False, False),  # which nothing could make again
    ([torch.Generator()], [torch.Generator(), 1], True, True),
    ([1], [1, deque([2])], True, True),
    ((1,), (1, 2), False, False),
    ({"a": 1}, {"a": 1, "b": [{"c": 2}]}, True, False),
    (Counter(a=1), Counter(a=1, b=2), True, True),
    ({"a": 1}, {"a": 1, "b": torch.ones(1)}, False, False),
]


@pytest.mark.parametrize(("saved", "live", "cut", "as_record"), CUT)
def test_what_a_live_container_has_beyond_what_was_saved(saved: Any, live: Any, cut: bool, as_record: bool) -> None:
    theirs, mine, _ = sides(saved, live)
    assert isinstance(theirs, SavedBranch) and isinstance(mine, Branch)
    assert (is_cut(theirs, mine, is_record=False), is_cut(theirs, mine, is_record=True)) == (cut, as_record)


def test_nodes_of_leaves_meet_as_they_are() -> None:
    array, value = SavedArray(0), SavedValue(0)
    assert meet(array, ArrayLeaf((), 0), []) == (array, ArrayLeaf((), 0))
    assert meet(value, ValueLeaf((), 1, 0), [2]) == (value, ValueLeaf((), 1, 0))
