"""What ranks of another number had of their own: rank 0's for all, or what the caller's function makes of all."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.errors import (
    DeeppartError,
    LeafMismatchError,
    PerRankError,
    PerRankNotice,
    StateError,
)
from deeppart.recovery.matching import Matched, notices
from deeppart.recovery.old_ranks import Mapped, OldLeaves, bring_old_leaves, map_old_leaves, memory_for_old_leaves
from deeppart.state.restore.target import DROPPED
from deeppart.testing.states import difference
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
    bring_old_leaves(opened.delivery, old)
    return matched, old


def mapped(opened: Opened, state: Any, per_rank: Any) -> tuple[Matched, Mapped]:
    matched, old = brought(opened, state, per_rank)
    return matched, map_old_leaves(matched, old, 0, 1)


def last(path: str, old: list[Any], rank: int, size: int) -> Any:
    return old[-1]


def test_strict_refuses_and_names_all_that_is_a_ranks_own(opened: Opened) -> None:
    with pytest.raises(PerRankError) as caught:
        opened.matched(live_for_forged())
    assert "rng" in str(caught.value.found) and "position" in str(caught.value.found)
    assert "3 ranks" in caught.value.summary and "1 rank" in caught.value.summary and caught.value.where == "step 4"


def test_drop_leaves_them_alone_and_says_so(opened: Opened) -> None:
    matched = opened.matched(live_for_forged(), "drop")
    assert matched.target.dropped == {2} and matched.target.live.keys() == {0, 1}
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
    found = map_old_leaves(matched, old, 0, 1)
    rng, position = table["rng"], table["*"]
    assert {index: array.tolist() for index, array in found.arrays.items()} == (
        {} if rng == "drop" else {2: [0 if rng == "rank0" else 2] * 16}
    )
    assert matched.target.dropped == ({2} if rng == "drop" else set())
    assert matched.target.values == [DROPPED if position == "drop" else 1000 if position == "rank0" else 1002]


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


# --- what it becomes --------------------------------------------------------------------------------------------------


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


def test_a_function_is_asked_once_for_each_path_with_what_all_old_ranks_had(opened: Opened) -> None:
    asked: dict[str, Any] = {}

    def ask(path: str, old: Sequence[Any], rank: int, size: int) -> Any:
        assert path not in asked
        asked[path] = [item.tolist() if path == "rng" else item for item in old], rank, size
        return old[1]

    matched, old = brought(opened, live_for_forged(), ask)
    found = map_old_leaves(matched, old, 5, 7)
    assert asked == {
        "rng": ([[rank] * 16 for rank in range(RANKS)], 5, 7),
        "position": ([1000, 1001, 1002], 5, 7),
    }
    assert found.arrays[2].tolist() == [1] * 16 and matched.target.values == [1001]


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


@pytest.mark.parametrize(
    "given", [torch.zeros(15, dtype=torch.uint8), torch.zeros(16), np.zeros(16, "u1")], ids=range(3)
)
def test_what_does_not_fit_the_live_leaf(opened: Opened, given: Any) -> None:
    error = refused(opened, lambda path, old, rank, size: given if path == "rng" else old[0])
    assert isinstance(error, LeafMismatchError) and error.where == "path rng"
