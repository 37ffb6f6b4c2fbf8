"""The loop that is under way: its place after a restart, its batch, and its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deeppart.elastic.adaptdl import checkpoint, collective, env
from deeppart.elastic.adaptdl.conftest import elastic_multiprocessing
from deeppart.elastic.adaptdl.errors import UsageError
from deeppart.elastic.adaptdl.goodput import GoodputFunction
from deeppart.elastic.adaptdl.torch import loops
from deeppart.elastic.adaptdl.torch.epoch import remaining_epochs_until
from deeppart.elastic.adaptdl.torch.loops import AdaptiveDataLoaderHelper, current_dataloader
from deeppart.errors import DeeppartWarning


def walked(loader: AdaptiveDataLoaderHelper, steps: int = 4) -> Iterator[int]:
    """A loop of so many steps of one sample."""
    with loader.context():
        if loader.skipdone():
            return
        while (index := loader.current_index) is not None and index < steps:
            yield index
            loader.current_index = index + 1


def test_loops_that_were_over_are_skipped_and_places_are_kept() -> None:
    @elastic_multiprocessing
    def job() -> int:
        collective.initialize()
        train, valid = AdaptiveDataLoaderHelper(), AdaptiveDataLoaderHelper()
        seen = []
        for epoch in remaining_epochs_until(2):
            for loop, loader in enumerate((train, valid, train)):  # one of them twice in an epoch
                for step in walked(loader):
                    seen.append((epoch, loop, step))
                    if (env.num_restarts(), epoch, loop, step) in {(0, 0, 2, 2), (1, 1, 1, 3)}:
                        checkpoint.save_all_states()
                        return 1
        every = [(epoch, loop, step) for epoch in range(2) for loop in range(3) for step in range(4)]
        assert seen == every[every.index((1, 1, 3)) :]
        return 0

    job()


def test_one_in_another_and_one_that_is_left() -> None:
    loader, other = AdaptiveDataLoaderHelper(), AdaptiveDataLoaderHelper()
    assert loader.current_index is None
    for _ in walked(loader):
        assert current_dataloader() is loader and other.current_index is None
        other.current_index = 3
        with pytest.raises(UsageError, match="begins in another one"):
            next(walked(other))
        with pytest.raises(UsageError, match="made within a loop"):
            AdaptiveDataLoaderHelper()
        break
    assert current_dataloader() is None and list(walked(loader)) == [0, 1, 2, 3]


def test_a_data_set_that_has_changed_its_length(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = AdaptiveDataLoaderHelper()
    with loader.context():
        loader.check_length(10)
        loader.current_index = 4
        checkpoint.save_all_states()
    checkpoint._states.clear()
    checkpoint._found.clear()
    loops._LoaderState.made.clear()
    again = AdaptiveDataLoaderHelper()
    with again.context():
        assert again.current_index == 4
        again.check_length(10)
        with pytest.raises(UsageError, match="another length"):
            again.check_length(11)


# --- the batch --------------------------------------------------------------------------------------------------------

BAD = [(7, None), (8.0, None), (64, (9, 32)), (64, (1, 7))]


@pytest.mark.parametrize(("most", "local"), BAD)
def test_bounds_that_the_first_batch_is_not_within(most: Any, local: Any) -> None:
    with pytest.raises(UsageError, match="not within the bounds"):
        AdaptiveDataLoaderHelper(8).autoscale_batch_size(most, local)


def test_batches_follow_the_goodput_where_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    collective.initialize()
    monkeypatch.setenv("ADAPTDL_NUM_REPLICAS", "4")
    functions: list[GoodputFunction | None] = [None]
    monkeypatch.setattr(loops, "get_goodput_fn", lambda: functions[0])
    loader = AdaptiveDataLoaderHelper(30)
    assert loader.sync_local_bsz() == 8 and loader.accumulation_steps == 0  # as many for each replica
    loader.autoscale_batch_size(400, (2, 50), gradient_accumulation=True)
    assert loader.training and loader.sync_local_bsz() == 8
    noisy = GoodputFunction((0.01, 0.001, 0.05, 0.001, 0.05, 0.0, 1.0), (1.0, 1000.0), 30)
    functions[0] = noisy
    assert loader.sync_local_bsz() == 50 and loader.current_batch_size >= 380
    before = loader.current_batch_size
    functions[0] = GoodputFunction((0.01, 0.001, 0.05, 0.001, 0.05, 0.0, 1.0), (1.0, 800.0), 30)
    loader.sync_local_bsz()
    assert loader.current_batch_size == before  # less than 5 % more elsewhere
    functions[0] = GoodputFunction((0.01, 0.001, 0.05, 0.001, 0.05, 0.0, 1.0), (1.0, 1e-6), 30)
    loader.sync_local_bsz()
    assert loader.current_batch_size <= 32  # what is no noise needs no larger batch


def test_which_micro_batch_makes_the_step() -> None:
    collective.initialize()
    loader = AdaptiveDataLoaderHelper(1)
    loader._state.accumulation_steps = 2
    found = []
    for _ in range(6):
        with loader.profile(commit=False):
            found.append(loader.is_optim_step())
    assert found == [False, False, True] * 2


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_signal_to_one_replica_ends_all_after_the_same_step() -> None:
    @elastic_multiprocessing
    def job() -> int:
        if env.num_restarts() == 0:
            return 3
        collective.initialize()
        loader = AdaptiveDataLoaderHelper()
        steps: list[int] = []

        def walk() -> None:
            for number in walked(loader, 20):
                with loader.profile(commit=False):
                    steps.append(number)
                    if number == 5 and env.replica_rank() == 2:
                        os.kill(os.getpid(), signal.SIGTERM)

        if env.num_restarts() == 2:
            walk()
            assert steps == list(range(7, 20))
            return 0
        with pytest.raises(SystemExit) as end:
            walk()
        assert end.value.code == 143 and steps == list(range(7)), steps
        return 2

    job()


def test_an_end_without_a_directory_says_that_nothing_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ADAPTDL_CHECKPOINT_PATH", "DEEPPART_PERSISTENT_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(loops, "get_exit_flag", lambda: True)
    loader = AdaptiveDataLoaderHelper()
    collective.initialize()
    try:
        with pytest.warns(DeeppartWarning, match="ADAPTDL_CHECKPOINT_PATH"), pytest.raises(SystemExit, match="143"):
            for _ in walked(loader):
                with loader.profile(commit=False):
                    pass
    finally:
        collective.teardown()


def test_to_tensorboard() -> None:
    written: dict[str, float] = {}

    class Writer:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            written[name] = value

    loader = AdaptiveDataLoaderHelper(8)
    loader._state.current_local_bsz, loader._state.accumulation_steps = 4, 1
    loader.to_tensorboard(Writer(), 3, "a")
    loader.to_tensorboard(Writer(), 3, "b/")
    assert written == {
        f"{tag}/{name}": value
        for tag in "ab"
        for name, value in (("Total_Batch_Size", 8), ("Local_Batch_Size", 4), ("Accumulation_Steps", 1))
    }
