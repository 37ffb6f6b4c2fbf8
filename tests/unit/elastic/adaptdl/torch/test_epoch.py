"""Epochs that are over are not gone through again."""

from __future__ import annotations

from pathlib import Path

import pytest

from deeppart.elastic.adaptdl import checkpoint
from deeppart.elastic.adaptdl.errors import UsageError
from deeppart.elastic.adaptdl.torch import current_epoch, epoch, finished_epochs, remaining_epochs_until


def test_a_second_loop_goes_on() -> None:
    assert current_epoch() is None
    assert list(remaining_epochs_until(2)) == [0, 1] and list(remaining_epochs_until(2)) == []
    for number in remaining_epochs_until(4):
        assert number == current_epoch() == finished_epochs()
    assert finished_epochs() == 4


def test_an_epoch_that_is_left_early_is_over() -> None:
    for number in remaining_epochs_until(5):
        if number == 2:
            break
    assert finished_epochs() == 3 and current_epoch() is None


def test_one_in_another() -> None:
    with pytest.raises(UsageError, match="found: epoch 0 is under way"):
        for _ in remaining_epochs_until(2):
            list(remaining_epochs_until(3))


def test_a_job_goes_on_in_the_epoch_that_it_was_in(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in remaining_epochs_until(5):
        if number == 3:
            checkpoint.save_all_states()
    checkpoint._states.clear()
    checkpoint._found.clear()
    monkeypatch.setattr(epoch, "_state", None)
    assert finished_epochs() == 3 and list(remaining_epochs_until(5)) == [3, 4]
