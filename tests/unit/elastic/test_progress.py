"""Epochs and members of a training."""

from __future__ import annotations

from typing import Any

import pytest

from deeppart.elastic import ElasticDataLoader, Progress
from deeppart.errors import ConfigError, RestoreError
from tests.unit.elastic.jobs import Alone, numbers


def test_epochs_that_are_over_are_not_gone_through_again() -> None:
    progress = Progress()
    assert list(progress.remaining_epochs_until(2)) == [0, 1] and progress.finished_epochs == 2
    assert progress.current_epoch is None
    going_on = Progress()
    going_on.load_state_dict(progress.state_dict())
    assert list(going_on.remaining_epochs_until(2)) == []
    assert [(epoch, going_on.current_epoch) for epoch in going_on.remaining_epochs_until(4)] == [(2, 2), (3, 3)]


def test_an_epoch_that_is_left_is_the_current_one_for_a_checkpoint_and_over_in_the_next_loop() -> None:
    progress = Progress()
    for epoch in progress.remaining_epochs_until(5):
        if epoch == 2:
            break
    assert progress.state_dict()["epoch"] == 2
    assert list(progress.remaining_epochs_until(5)) == [3, 4]


@pytest.mark.parametrize("way", ["break", "continue", "same turn"])
def test_a_training_that_goes_back_is_in_the_epoch_that_it_went_back_to(way: str) -> None:
    progress, seen = Progress(), list[tuple[int, tuple[int, ...]]]()
    loader = ElasticDataLoader(numbers(4), 2, shuffle=False, progress=progress, ranks=Alone())
    saved, went_back = dict[str, Any](), False

    def epochs() -> None:
        nonlocal saved, went_back
        for epoch in progress.remaining_epochs_until(4):
            if epoch == 3 and not went_back:
                went_back = True
                progress.load_state_dict(saved)
                if way == "break":
                    break
                if way == "continue":
                    continue
            for (batch,) in loader:
                seen.append((progress.finished_epochs, tuple(batch.tolist())))
                if epoch == 1 and not saved:
                    saved = progress.state_dict()  # after the first of two steps

    epochs()
    if way == "break":
        epochs()
    first, second = (0, 1), (2, 3)
    before = [(epoch, batch) for epoch in range(3) for batch in (first, second)]
    after = [(1, second), (2, first), (2, second), (3, first), (3, second)]
    assert went_back and seen == before + after
    assert progress.finished_epochs == 4


def test_two_members_of_one_name_are_refused() -> None:
    progress = Progress()
    ElasticDataLoader(numbers(6), 2, progress=progress, ranks=Alone(), name="mine")
    with pytest.raises(ConfigError, match="same name"):
        ElasticDataLoader(numbers(6), 2, progress=progress, ranks=Alone(), name="mine")


def test_places_of_a_later_version_are_refused() -> None:
    with pytest.raises(RestoreError, match="does not know"):
        Progress().load_state_dict(Progress().state_dict() | {"version": 2})
