"""The live state that a restore fills: what could not be filled, or saved, is refused before anything is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import CheckpointError, StateError
from deeppart.recovery.narrowing import flatten_live
from tests.unit.cli_support import forge, live_for_forged


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


@pytest.mark.parametrize("per_rank", ["rank0", lambda path, old, rank, size: old[0]], ids=["rank0", "function"])
def test_an_array_for_mapped_bytes_that_cannot_be_written_is_refused_first(tmp_path: Path, per_rank: Any) -> None:
    forge(tmp_path, 4)
    live = live_for_forged()
    live["rng"] = torch.zeros(1, dtype=torch.uint8).expand(16)
    with (
        deeppart.Checkpointer(persistent_dir=str(tmp_path)) as checkpointer,
        pytest.raises(StateError, match="cannot be restored in place"),
    ):
        checkpointer.restore(live, per_rank=per_rank)
    assert not live["a"].any() and live["position"] == 0


def test_inference_tensors_are_restored_in_whatever_layout(tmp_path: Path) -> None:
    saved = torch.arange(6.0).view(2, 3)
    with deeppart.Checkpointer(persistent_dir=str(tmp_path)) as checkpointer:
        checkpointer.checkpoint([saved, saved.clone(), saved.clone()], 1).wait()
    with torch.inference_mode():
        live = [torch.zeros(2, 3), torch.zeros(3, 2).t(), torch.zeros(2, 3, dtype=torch.float64)]
    with deeppart.Checkpointer(persistent_dir=str(tmp_path)) as checkpointer:
        checkpointer.restore(live, cast=True)
    assert all(torch.equal(each.float(), saved) for each in live)


class Refusing:
    """A user's object that takes no saved state."""

    def state_dict(self) -> dict[str, int]:
        return {"a": 1}

    def load_state_dict(self, state: Any) -> None:
        raise ZeroDivisionError("the user's own")


def test_an_error_after_bytes_were_written_says_so(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=str(tmp_path)) as checkpointer:
        checkpointer.checkpoint({"w": torch.ones(3), "x": Refusing()}, 1).wait()
        live: dict[str, Any] = {"w": torch.zeros(3), "x": Refusing()}
        with pytest.raises((StateError, CheckpointError)) as caught:
            checkpointer.restore(live)
    assert live["w"].all() and "build the state again" in str(caught.value.todo)
