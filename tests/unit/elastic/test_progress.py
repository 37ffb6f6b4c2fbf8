"""Epochs and members of a training."""

from __future__ import annotations

from typing import Any

import pytest

from deeppart.elastic import Accumulator, ElasticDataLoader, Progress
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


@pytest.mark.parametrize("way", ["break", "continue"])
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


def test_an_epoch_does_not_go_on_after_going_back() -> None:
    progress = Progress()
    loader = ElasticDataLoader(numbers(4), 2, progress=progress, ranks=Alone())
    saved = progress.state_dict()
    for _ in progress.remaining_epochs_until(2):
        of_epoch = ElasticDataLoader(numbers(4), 2, progress=progress, ranks=Alone(), name="of the epoch")
        progress.load_state_dict(saved)
        sums = Accumulator(progress=progress, ranks=Alone(), name="sums")
        with pytest.raises(ConfigError, match="goes on after a checkpoint was loaded"):
            next(iter(loader))
        with pytest.raises(ConfigError, match="goes on after"), sums.synchronized():
            pass
        break
    for _ in progress.remaining_epochs_until(1):
        assert len(list(loader)) == 2
        with pytest.raises(ConfigError, match="make it again"):
            next(iter(of_epoch))
        again = ElasticDataLoader(numbers(4), 2, progress=progress, ranks=Alone(), name="of the epoch")
        assert len(list(again)) == 2


def test_loaders_of_an_epoch_are_numbered_in_it_and_leave_with_it() -> None:
    def train(progress: Progress, stop_at: int | None) -> tuple[list[tuple[int, list[int]]], dict[str, Any]]:
        before = ElasticDataLoader(numbers(2), 2, progress=progress, ranks=Alone())
        found = list[tuple[int, list[int]]]()
        for epoch in progress.remaining_epochs_until(3):
            with pytest.raises(ConfigError, match="within a loop"):
                progress.name_for("parallel", None)  # a model would leave with the epoch
            for _ in range(2):
                for (batch,) in ElasticDataLoader(numbers(4), 2, shuffle=False, progress=progress, ranks=Alone()):
                    found.append((epoch, batch.tolist()))
                    if len(found) == stop_at:
                        return found, progress.state_dict()
        assert len(list(before)) == 1
        return found, progress.state_dict()

    whole, state = train(Progress(), None)
    assert set(state["members"]) == {"loader-0", "loader-epoch2-0", "loader-epoch2-1"}
    for place in range(1, len(whole)):
        first, state = train(Progress(), place)
        later = Progress()
        later.load_state_dict(state)
        assert first + train(later, None)[0] == whole, place


def test_two_members_of_one_name_are_refused() -> None:
    progress = Progress()
    ElasticDataLoader(numbers(6), 2, progress=progress, ranks=Alone(), name="mine")
    with pytest.raises(ConfigError, match="same name"):
        ElasticDataLoader(numbers(6), 2, progress=progress, ranks=Alone(), name="mine")


def test_places_of_a_later_version_are_refused() -> None:
    with pytest.raises(RestoreError, match="does not know"):
        Progress().load_state_dict(Progress().state_dict() | {"version": 2})
