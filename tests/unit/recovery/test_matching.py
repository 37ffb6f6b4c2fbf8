"""A live state matched with a recovered step: what goes where, what does not fit, and what the user is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.comm import SingleComm
from deeppart.errors import (
    DeeppartWarning,
    LeafMismatchError,
    PerRankError,
    PerRankNotice,
    StateError,
    StructureMismatchError,
)
from deeppart.recovery.matching import notices, refused_ties
from deeppart.state.restore.target import DROPPED
from tests.unit.cli_support import forge, live_for_forged
from tests.unit.recovery.opened import TIMEOUT_S, Opened, open_step


@pytest.fixture
def of_three(tmp_path: Path) -> Opened:
    """Saved by three ranks: leaves ``a`` 0, ``b`` 1; ``rng`` 2 and ``position`` are each rank's own."""
    forge(tmp_path / "three", 4, 3)
    return open_step(tmp_path / "three")


@pytest.fixture
def of_one(tmp_path: Path) -> Opened:
    """The same, saved by one rank."""
    forge(tmp_path / "one", 4, 1)
    return open_step(tmp_path / "one")


# --- as many ranks ----------------------------------------------------------------------------------------------------


# --- another number ---------------------------------------------------------------------------------------------------


def test_strict_refuses_and_names_all_that_is_a_ranks_own(of_three: Opened) -> None:
    with pytest.raises(PerRankError) as caught:
        of_three.matched(live_for_forged())
    assert "rng" in str(caught.value.found) and "position" in str(caught.value.found)
    assert "3 ranks" in caught.value.summary and "1 rank" in caught.value.summary and caught.value.where == "step 4"


def test_drop_leaves_them_alone_and_says_so(of_three: Opened) -> None:
    matched = of_three.matched(live_for_forged(), "drop")
    assert matched.target.dropped == {2} and matched.target.live.keys() == {0, 1}
    assert matched.target.values == [DROPPED]
    (notice,) = notices(matched, 1)
    assert isinstance(notice, PerRankNotice)
    assert "rng" in str(notice) and "position" in str(notice) and "of 3 ranks on 1" in str(notice)
    assert "stays as it was" in str(notice) and '"rank0" or a function' in str(notice)


# --- what does not fit ------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Callable[[], Any], type[StateError], str]] = {
    "a shape": (lambda: live_for_forged() | {"a": torch.zeros(901)}, LeafMismatchError, "build the state as it was"),
    "one more": (lambda: live_for_forged() | {"c": 1}, StructureMismatchError, "remove them from the state"),
    "a level more": (lambda: {"state": live_for_forged()}, StructureMismatchError, "restore(state['state'])"),
    "expanded": (lambda: live_for_forged() | {"a": torch.zeros(1).expand(900)}, StateError, "clone"),
    "what cannot be saved": (lambda: live_for_forged() | {"position": object()}, StateError, ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_with_what_to_do(of_one: Opened, name: str) -> None:
    make, kind, todo = WRONG[name]
    state = make()
    with pytest.raises(kind) as caught:
        of_one.matched(state)
    assert todo in str(caught.value.todo)


# --- ties -------------------------------------------------------------------------------------------------------------


def tied_live() -> dict[str, Any]:
    state = live_for_forged()
    state["rng"] = state["b"].view(torch.uint8)[:16]
    return state


def test_a_tie_that_was_not_saved_is_refused_where_all_ranks_have_it(of_one: Opened) -> None:
    """One rank is all ranks."""
    matched = of_one.matched(tied_live())
    error = refused_ties(matched, SingleComm(), "test", TIMEOUT_S)
    assert isinstance(error, StructureMismatchError) and "rng lies inside b" in str(error.found)
    assert "untie them" in str(error.todo)


# --- what the user is told --------------------------------------------------------------------------------------------


def optimizer(kind: type[torch.optim.Optimizer], steps: int) -> torch.optim.Optimizer:
    parameter = torch.nn.Parameter(torch.ones(4))
    made = kind([parameter], lr=0.5)  # type: ignore[call-arg]
    for _ in range(steps):
        parameter.grad = torch.ones(4)
        made.step()
    return made


def told(root: Path, saved: Any, state: Any) -> list[DeeppartWarning]:
    with deeppart.Checkpointer(persistent_dir=root) as ck:
        ck.checkpoint(saved, 7).wait()
    return notices(open_step(root).matched(state), 1)


def test_what_does_not_reach_an_optimizer_is_told(tmp_path: Path) -> None:
    saved, state = (optimizer(torch.optim.Adam, 1), optimizer(torch.optim.Adam, 1))
    state.param_groups[0]["lr"] = 0.1
    (notice,) = told(tmp_path, {"o": saved.state_dict()}, {"o": state.state_dict()})
    assert str(notice).startswith("restored step 7: ") and "o" in str(notice)


def test_an_optimizer_of_another_class_is_told(tmp_path: Path) -> None:
    saved, state = optimizer(torch.optim.Adam, 0), optimizer(torch.optim.AdamW, 0)
    (notice,) = told(tmp_path, {"o": saved}, {"o": state})
    assert str(notice).startswith("restored step 7: ") and "Adam" in str(notice)


def test_of_what_fits_nothing_is_told(tmp_path: Path) -> None:
    assert told(tmp_path, {"o": optimizer(torch.optim.Adam, 1)}, {"o": optimizer(torch.optim.Adam, 0)}) == []


def test_a_leaf_of_another_shape_behind_a_wrapper_is_not_put_down_to_the_wrapper(tmp_path: Path) -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 9))
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path), timeout=TIMEOUT_S)) as checkpointer:
        checkpointer.checkpoint({"model": torch.nn.DataParallel(inner)}, 1).wait()
        another_head = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
        with pytest.raises(LeafMismatchError) as caught:
            checkpointer.restore({"model": another_head}, strict=False)
        assert "exclude='model/1.weight'" in str(caught.value) and "DataParallel" not in str(caught.value)
