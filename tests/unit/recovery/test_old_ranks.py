"""What ranks of another number had of their own: rank 0's for all, or what the caller's function makes of all."""

from __future__ import annotations

import argparse
import ast
import collections
import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.errors import (
    ConfigError,
    DeeppartError,
    LeafMismatchError,
    PerRankError,
    PerRankNotice,
    StateError,
    StructureMismatchError,
)
from deeppart.recovery.matching import Matched, notices
from deeppart.recovery.old_ranks import OldLeaves, map_old_leaves, memory_for_old_leaves, wanted_of_old
from deeppart.state.restore import DROPPED, Scatter
from tests.states import difference
from tests.unit.cli_support import forge, live_for_forged
from tests.unit.recovery.opened import Opened, open_step
from tests.unit.sharded_states import restore, save

RANKS = 3


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """Of three ranks: ``rng``, leaf 2, is full of the rank; ``position`` is 1000 and the rank."""
    forge(tmp_path, 4, RANKS)
    return open_step(tmp_path)


def brought(opened: Opened, state: Any, per_rank: Any) -> tuple[Matched, OldLeaves]:
    matched = opened.matched(state, per_rank)
    old = memory_for_old_leaves(matched)
    opened.delivery.bring(Scatter(wanted_of_old(old)))
    return matched, old


def mapped(opened: Opened, state: Any, per_rank: Any) -> Matched:
    matched, old = brought(opened, state, per_rank)
    map_old_leaves(matched, old, 0, 1)
    return matched


def last(path: str, old: list[Any], rank: int, size: int) -> Any:
    return old[-1]


def test_strict_refuses_what_is_a_ranks_own_and_drop_leaves_it_alone(opened: Opened) -> None:
    with pytest.raises(PerRankError) as caught:
        opened.matched(live_for_forged())
    assert "rng" in str(caught.value.found) and "position" in str(caught.value.found)
    assert "3 ranks" in caught.value.summary and "1 rank" in caught.value.summary and caught.value.where == "step 4"
    matched = opened.matched(live_for_forged(), "drop")
    assert matched.target.dropped == {2, 3} and matched.target.places.keys() == {0, 1}
    (notice,) = notices(matched, 1)
    assert isinstance(notice, PerRankNotice) and "rng" in str(notice) and "position" in str(notice)
    assert "of 3 ranks on 1" in str(notice) and "stays as it was" in str(notice)
    assert '"rank0" or a function' in str(notice)


# --- what is brought --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "leaves"),
    [
        ({"rng": "drop", "*": "rank0"}, [[]]),
        ({"rng": "rank0", "*": last}, [[2], [], []]),
        ({"rng": last, "*": "rank0"}, [[2], [2], [2]]),
        ({"rng": last, "*": "drop"}, [[2], [2], [2]]),
    ],
    ids=["no function", "a function for the rest", "a function, and rank 0's", "a function alone"],
)
def test_of_a_table_each_leaf_goes_its_way(opened: Opened, table: Any, leaves: list[list[int]]) -> None:
    state = live_for_forged()
    matched, old = brought(opened, state, table)
    assert [list(each) for each in old] == leaves, "no memory for what is not asked for"
    map_old_leaves(matched, old, 0, 1)
    rng, position = table["rng"], table["*"]
    assert {index: array.tolist() for index, array in matched.target.mapped.items()} == (
        {} if rng == "drop" else {2: [0 if rng == "rank0" else 2] * 16}
    )
    assert matched.target.dropped == {number for number, way in ((2, rng), (3, position)) if way == "drop"}
    assert matched.target.values == {3: DROPPED if position == "drop" else 1000 if position == "rank0" else 1002}


@pytest.mark.filterwarnings("ignore::deeppart.errors.PerRankNotice")
def test_what_the_error_says_is_enough_to_go_on(tmp_path: Path) -> None:
    """Leaves, values, units, what shares memory, and what stands apart: each may go another way."""
    live = [states_of(rank + 7) for rank in range(3)]
    save(tmp_path, [states_of(rank) for rank in range(2)], replicated={"own/*": "none", "shared": "rank0", "*": "auto"})
    before = copy.deepcopy(live)
    with pytest.raises(PerRankError) as caught:
        restore(tmp_path, live)
    assert difference(before, live) is None
    named = str(caught.value.found)
    assert all(name in named for name in ("best", "mean", "draw", "own", "list")) and "shared" not in named
    line = str(caught.value.todo).partition("per_rank=")[2].partition("}")[0] + "}"
    with pytest.warns(PerRankNotice, match="draw, list, numpy"):
        restore(tmp_path, live, per_rank=ast.literal_eval(line))
    for rank, (found, old) in enumerate(zip(live, before, strict=True)):
        first = states_of(0)
        kept = {name: found.pop(name) for name in ("draw", "list", "numpy")}
        assert difference({name: old[name] for name in kept}, kept) is None, rank
        assert difference({name: first[name] for name in found}, found) is None, rank


def states_of(rank: int) -> dict[str, Any]:
    mean = torch.full((4,), float(rank))
    return {
        "best": rank + 0.5,
        "mean": mean,
        "view": mean[1:3],
        "draw": torch.full((3,), rank, dtype=torch.uint8),
        "numpy": {"bit_generator": "X", "state": {"key": np.full(3, rank)}, "pos": rank},
        "own": {"a": torch.full((2,), float(rank))},
        "list": [float(rank)] * (2 + rank % 2),
        "shared": torch.full((2,), float(rank)),
    }


@pytest.mark.filterwarnings("ignore::deeppart.errors.PerRankNotice")
def test_what_stands_apart_goes_the_way_of_its_glob(tmp_path: Path) -> None:
    """A function beside rank 0's and what is left alone; a function gets None where an old rank had nothing."""

    def state(rank: int, length: int | None = None) -> dict[str, Any]:
        def some() -> list[torch.Tensor]:
            return [torch.full((3,), float(rank)) for _ in range(rank + 1 if length is None else length)]

        return {"mine": some(), "first": some(), "kept": some(), "late": None if rank in (0, 7) else [rank, 2.5]}

    save(tmp_path, [state(rank) for rank in range(3)])
    live = [state(7, 1), state(7, 1)]
    asked: list[tuple[str, list[Any]]] = []

    def last_of(path: str, old: list[Any], rank: int, size: int) -> Any:
        asked.append((path, [None if each is None else len(each) for each in old]))
        return old[-1]

    table = {"kept": "drop", "first/*": "rank0", "*": last_of}
    restore(tmp_path, live, per_rank=table)
    assert sorted(asked) == [("late", [None, 2, 2])] * 2 + [("mine", [1, 2, 3])] * 2
    for found in live:
        assert difference({**state(2), "first": state(0)["first"], "kept": state(7, 1)["kept"]}, found) is None


@pytest.mark.filterwarnings("ignore::deeppart.errors.DeeppartWarning")
@pytest.mark.parametrize("replicated", ["auto", "none", {"a": "none", "*": "auto"}], ids=str)
def test_tied_leaves_of_each_rank(tmp_path: Path, replicated: Any) -> None:
    def tied(rank: int) -> dict[str, torch.Tensor]:
        a = torch.full((1_000,), float(rank))
        return {"a": a, "b": a, "c": a[10:20]}

    save(tmp_path, [tied(0), tied(1)], replicated=replicated)
    for per_rank, expected in (("rank0", 0.0), (last, 1.0)):
        live: dict[str, torch.Tensor] = {}
        restore(tmp_path, [live], replicated=replicated, per_rank=per_rank)
        assert [float(leaf.mean()) for leaf in live.values()] == [expected] * 3


# --- what it becomes --------------------------------------------------------------------------------------------------


def test_a_function_is_asked_once_for_each_path_with_what_all_old_ranks_had(opened: Opened) -> None:
    asked: dict[str, Any] = {}

    def ask(path: str, old: Sequence[Any], rank: int, size: int) -> Any:
        assert path not in asked
        asked[path] = [item.tolist() if path == "rng" else item for item in old], rank, size
        return old[1]

    matched, old = brought(opened, live_for_forged(), ask)
    map_old_leaves(matched, old, 5, 7)
    assert asked == {
        "rng": ([[rank] * 16 for rank in range(RANKS)], 5, 7),
        "position": ([1000, 1001, 1002], 5, 7),
    }
    assert matched.target.mapped[2].tolist() == [1] * 16 and matched.target.values == {3: 1001}


def test_what_a_function_gives_is_copied(opened: Opened) -> None:
    """It may be live, and is filled from itself then."""
    state = live_for_forged() | {"position": [1, {"x": 2}]}
    state["rng"][:] = 7

    def keep(path: str, old: list[Any], rank: int, size: int) -> Any:
        return state[path]

    matched = mapped(opened, state, keep)
    assert (
        matched.target.mapped[2] is not state["rng"] and matched.target.mapped[2].data_ptr() != state["rng"].data_ptr()
    )
    (value,) = matched.target.values.values()
    assert value == state["position"] and value is not state["position"] and value[1] is not state["position"][1]


@pytest.mark.parametrize(
    "make", [lambda: torch.arange(3), lambda: np.arange(4, dtype=">i2"), lambda: torch.zeros(2, 2)], ids=range(3)
)
def test_it_may_be_of_another_type_if_the_live_state_is(opened: Opened, make: Callable[[], Any]) -> None:
    state = live_for_forged() | {"rng": make(), "position": 5}

    def other(path: str, old: list[Any], rank: int, size: int) -> Any:
        return make() if path == "rng" else old[0]

    matched = mapped(opened, state, other)
    assert matched.target.live(2) is state["rng"]
    assert difference(make(), matched.target.mapped[2]) is None
    assert matched.target.types[2].shape == tuple(make().shape)


# --- what is wrong ----------------------------------------------------------------------------------------------------


def failing(error: Exception) -> Callable[..., Any]:
    def fail(path: str, old: list[Any], rank: int, size: int) -> Any:
        raise error

    return fail


def refused(opened: Opened, per_rank: Any) -> DeeppartError:
    state = live_for_forged()
    before = copy.deepcopy(state)
    with pytest.raises(DeeppartError) as caught:
        mapped(opened, state, per_rank)
    assert difference(before, state) is None
    return caught.value


def test_a_function_that_fails(opened: Opened) -> None:
    error = refused(opened, failing(KeyError("the user's bug")))
    assert type(error) is StateError and error.summary == "the per_rank function failed"
    assert error.found == 'KeyError: "the user\'s bug"' and error.where == "rank 0"
    assert isinstance(error.__cause__, KeyError)
    error = refused(opened, lambda path, old: old[0])
    assert "TypeError" in str(error.found) and "function(path, values" in str(error.todo)
    own = ConfigError("the user's check")
    assert refused(opened, failing(own)) is own, "an error of the library is raised as it is"


@pytest.mark.parametrize(
    "given", [None, [1, 2], "x", torch.zeros(15, dtype=torch.uint8), torch.zeros(16), np.zeros(16, "u1")], ids=range(6)
)
def test_a_function_that_gives_what_does_not_fit_the_live_leaf(opened: Opened, given: Any) -> None:
    error = refused(opened, lambda path, old, rank, size: given if path == "rng" else old[0])
    assert isinstance(error, LeafMismatchError) and error.where == "path rng"
    assert isinstance(given, (torch.Tensor, np.ndarray)) or error.found == type(given).__name__


def test_an_array_for_a_value(opened: Opened) -> None:
    """The live state has a number there."""
    state = live_for_forged() | {"position": [1, 2]}
    with pytest.raises(StateError, match="position"):
        mapped(opened, state, "rank0")


# --- objects ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::deeppart.errors.PerRankNotice")
@pytest.mark.parametrize("gives", [collections.deque, list])
@pytest.mark.parametrize("lengths", [(20, 20), (3, 5), (20, 3)], ids=["one value", "apart", "of two kinds"])
def test_deques_are_given_as_deques(tmp_path: Path, lengths: tuple[int, int], gives: Callable[..., Any]) -> None:
    """Saved as one value, or apart because they differ in length; its data may be given for one that is one value."""
    windows = [collections.deque(range(rank, rank + length), 50) for rank, length in enumerate(lengths)]
    save(tmp_path, [{"window": window, "w": torch.ones(2)} for window in windows])
    seen: list[Any] = []

    def joined(path: str, old: Sequence[Any], rank: int, size: int) -> Any:
        seen.append((path, list(old)))
        items = [x for each in old for x in each]
        return collections.deque(items, 50) if gives is collections.deque else items

    live: Any = {"window": collections.deque([7], 50), "w": torch.zeros(2)}
    window = live["window"]
    if gives is list and lengths != (20, 20):
        with pytest.raises(StructureMismatchError):  # all of it stands apart: a list is no deque
            restore(tmp_path, [live], per_rank=joined)
        assert list(window) == [7]
    else:
        restore(tmp_path, [live], per_rank=joined)
        assert live["window"] is window and list(window) == [*windows[0], *windows[1]] and window.maxlen == 50
    assert seen == [("window", windows)] and {type(each) for each in seen[0][1]} == {collections.deque}


@pytest.mark.filterwarnings("ignore::deeppart.errors.PerRankNotice")
def test_a_function_that_gives_something_else_for_a_deque(tmp_path: Path) -> None:
    save(tmp_path, [{"window": collections.deque(range(rank, rank + 20))} for rank in range(2)])
    live = {"window": collections.deque([7])}
    for given in (5, None, {"a": 1}, "text"):
        with pytest.raises(LeafMismatchError, match="such an object as it was given") as caught:
            restore(tmp_path, [live], per_rank=lambda path, old, rank, size, given=given: given)
        assert caught.value.where == "path window" and list(live["window"]) == [7]


@pytest.mark.filterwarnings("ignore::deeppart.errors.PerRankNotice")
def test_other_objects_are_given_as_what_they_are(tmp_path: Path) -> None:
    spaces = [argparse.Namespace(**{f"x{n}": n + rank for n in range(300)}) for rank in range(2)]
    save(tmp_path, [{"space": space} for space in spaces])
    live = {"space": argparse.Namespace(**{f"x{n}": 0 for n in range(300)})}
    restore(tmp_path, [live], per_rank=lambda path, old, rank, size: max(old, key=lambda each: each.x0))
    assert live["space"] == spaces[1]
