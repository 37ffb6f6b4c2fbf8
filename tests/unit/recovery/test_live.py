"""The live state that a restore fills: what could not be filled, or saved, is refused before anything is touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import StateError, UnsupportedLeafError
from deeppart.recovery import refusal_of_state
from deeppart.recovery.narrowing import flatten_live
from tests.unit.state.restore.mismatches import Case, check_refused, config, ones, zeros

CASES: dict[str, Callable[[], Case]] = {
    "read-only numpy": lambda: (np.ones(3), frozen(np.zeros(3)), StateError, "bad", ["read-only"]),
    "expanded": lambda: (ones(3), zeros(1).expand(3), StateError, "bad", ["shape [3]"]),
    "overlapping": lambda: (ones(3, 2), zeros(4).as_strided((3, 2), (1, 1)), StateError, "bad", ["shape [3, 2]"]),
    "writable numpy overlap": lambda: (
        np.ones((3, 2)), np.lib.stride_tricks.as_strided(np.zeros(4), (3, 2), (8, 8)), StateError, "bad", ["[3, 2]"]),
}  # fmt: skip


def frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("name", CASES)
def test_a_mismatch_is_named_and_touches_nothing(tmp_path: Path, name: str) -> None:
    check_refused(tmp_path, CASES[name]())


def test_what_lies_conjugated_stays_the_live_tensor() -> None:
    tensor = torch.zeros(3, dtype=torch.complex64).conj()
    assert flatten_live([tensor]).data[0] is tensor


class Failing:
    """An object of a user whose property fails while the state is looked at."""

    @property
    def state_dict(self) -> Any:
        raise ZeroDivisionError("the user's own")

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("not reached")


def test_whatever_the_callers_objects_raise_is_an_error_of_the_state() -> None:
    with pytest.raises(StateError, match="flattening the state failed") as caught:
        flatten_live({"a": Failing()})
    assert caught.value.found == "ZeroDivisionError: the user's own"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


# --- nothing to restore yet -------------------------------------------------------------------------------------------

UNSAVEABLE: dict[str, Callable[[], Any]] = {
    "an object": lambda: {"bad": object()},
    "no data": lambda: {"bad": torch.ones(3, device="meta")},
    "an object that fails": lambda: {"bad": Failing()},
    "far too deep": lambda: nested(300),
}


def nested(depth: int) -> Any:
    state: Any = torch.ones(1)
    for _ in range(depth):
        state = [state]
    return state


@pytest.mark.parametrize("name", UNSAVEABLE)
def test_what_could_not_be_saved_is_an_error_before_the_first_save(name: str) -> None:
    try:
        error = refusal_of_state(flatten_live(UNSAVEABLE[name]()))
    except StateError:
        return
    assert isinstance(error, StateError)


def test_it_is_raised_at_the_first_restore_into_a_directory_without_checkpoints(tmp_path: Path) -> None:
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        with pytest.raises(UnsupportedLeafError, match="path bad"):
            ck.restore({"bad": object()})
        assert ck.restore({"good": 1}) is None
