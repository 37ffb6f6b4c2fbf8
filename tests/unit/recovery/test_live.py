"""The live state that a restore fills: what could not be filled, or saved, is refused before anything is touched."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deeppart.errors import StateError
from deeppart.recovery.narrowing import flatten_live


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
