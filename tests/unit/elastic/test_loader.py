"""Every sample once in every epoch, in the same steps, on whatever ranks: of data sets and of lists of shards."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.elastic_shards import read_per_sample
from deeppart.elastic import ElasticDataLoader, Progress
from deeppart.errors import ConfigError, RestoreError
from tests.unit.elastic.jobs import Alone, Job, Opened, numbers, same_steps


def job_of(sizes: int | list[int], batch: int, **more: Any) -> Job:
    """Of a data set of this length, or of shards of these."""
    return (
        Job(sizes, batch, **more) if isinstance(sizes, int) else Job(sum(sizes), batch, data=Opened(sizes).data, **more)
    )


@settings(max_examples=90)
@given(
    st.integers(1, 80) | st.lists(st.integers(0, 30), min_size=1, max_size=12),
    st.integers(1, 20),
    st.integers(0, 3),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 7), st.integers(1, 9)), max_size=4),
)
def test_whatever_the_sizes(
    sizes: int | list[int], batch: int, accumulation: int, shuffle: bool, runs: list[tuple[int, int]]
) -> None:
    options = {"accumulation": accumulation, "shuffle": shuffle}
    found, straight = job_of(sizes, batch, options=options), job_of(sizes, batch, options=options)
    same_steps([(min(ranks, batch), steps) for ranks, steps in runs] + [(1, 10**9)], found)
    straight.run(1)
    assert found.whole() and found.steps == straight.steps
    assert found.weights == pytest.approx([1.0] * len(found.weights))


@settings(max_examples=40)
@given(st.integers(1, 80), st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(4, 30)), max_size=4))
def test_whatever_batches_are_changed_to(length: int, runs: list[tuple[int, int, int]]) -> None:
    """In the second step of each run; the sizes that are saved hold in the next run."""
    job = Job(length, 8)
    for ranks, steps, size in [*runs, (2, 10**9, 5)]:
        job.run(ranks, steps, lambda loader, step, size=size: step == 2 and loader.set_batch(size))  # type: ignore[misc]
    assert job.whole()
    assert job.weights == pytest.approx([1.0] * len(job.weights))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 with torch 2.13
@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("stays", [False, True])
def test_workers_that_are_ahead_change_nothing(kind: Any, stays: bool) -> None:
    """Batches under way in workers are neither lost nor had twice, also if the batch changes while they are."""
    options = {"num_workers": 2, "prefetch_factor": 3, "loader": kind, "persistent_workers": stays}
    job = Job(120, 8, epochs=1, options=options)
    after: list[int] = []

    def change(loader: ElasticDataLoader, step: int) -> None:
        if step == 2:
            after.append(loader.set_batch(20))

    job.run(2, 4, change)
    job.run(1)
    assert job.whole() and set(after) == {8 * 2}
    assert [len(samples) for _, samples in job.steps] == [8, 8] + [20] * 5 + [4]
    assert job.weights == pytest.approx([1.0] * len(job.weights))


def test_loops_that_were_over_are_skipped_and_others_are_gone_on_with() -> None:
    """Training and validation in each epoch; a checkpoint in each place, and a job that goes on from it."""

    def train(progress: Progress, stop_at: int | None) -> tuple[list[str], dict[str, Any] | None]:
        training = ElasticDataLoader(numbers(6), 2, progress=progress, ranks=Alone(), shuffle=False)
        checking = ElasticDataLoader(numbers(3), 1, progress=progress, ranks=Alone(), shuffle=False)
        done: list[str] = []
        for epoch in progress.remaining_epochs_until(2):
            for name, loader in (("train", training), ("check", checking), ("again", checking)):
                for (batch,) in loader:
                    done.append(f"{epoch} {name} {batch.tolist()}")
                    if len(done) == stop_at:
                        return done, progress.state_dict()
        return done, None

    whole, _ = train(Progress(), None)
    assert len(whole) == len(set(whole)) == 2 * (3 + 3 + 3)
    for place in range(1, len(whole)):
        first, state = train(Progress(), place)
        going_on = Progress()
        assert state is not None
        going_on.load_state_dict(json.loads(json.dumps(state)))
        rest, _ = train(going_on, None)
        assert first + rest == whole, place


def test_a_restored_loader_goes_on_in_a_loop_that_counts_epochs_itself() -> None:
    """As scripts with DistributedSampler do: ``for epoch in range(first, 3): loader.set_epoch(epoch)``."""
    loader = ElasticDataLoader(numbers(6), 2, progress=Progress(), ranks=Alone(), shuffle=False)
    loader.set_epoch(1)
    next(iter(loader))
    saved = loader.state_dict()
    other = ElasticDataLoader(numbers(6), 2, progress=Progress(), ranks=Alone(), shuffle=False)
    other.load_state_dict(saved)
    found = {}
    for epoch in range(other.epoch, 3):
        other.set_epoch(epoch)
        found[epoch] = [batch.tolist() for (batch,) in other]
    assert found == {1: [[2, 3], [4, 5]], 2: [[0, 1], [2, 3], [4, 5]]}


def test_a_batch_smaller_than_the_ranks_is_named() -> None:
    with pytest.raises(ConfigError, match="fewer samples than there are ranks") as caught:
        ElasticDataLoader(numbers(60), 3, progress=Progress(), ranks=Alone(0, 4))
    assert "4 or more" in str(caught.value)
    loader = ElasticDataLoader(numbers(60), 4, progress=Progress(), ranks=Alone(0, 4))
    with pytest.raises(ConfigError, match="fewer samples"):
        loader.set_batch(2)
    small = ElasticDataLoader(numbers(60), 2, progress=Progress(), ranks=Alone(0, 2))
    with pytest.raises(ConfigError, match="fewer samples"):
        ElasticDataLoader(numbers(60), 4, progress=Progress(), ranks=Alone(0, 4)).load_state_dict(
            small.state_dict() | {"asked": [4, 0]}
        )


def test_a_data_set_of_another_length_is_named() -> None:
    saved = ElasticDataLoader(numbers(60), 4, progress=Progress(), ranks=Alone()).state_dict()
    other = ElasticDataLoader(numbers(61), 4, progress=Progress(), ranks=Alone())
    with pytest.raises(RestoreError, match="another length") as caught:
        other.load_state_dict(saved)
    assert "60 samples" in str(caught.value) and "61" in str(caught.value)

    class Growing(Dataset[int]):
        length = 5

        def __len__(self) -> int:
            return self.length

        def __getitem__(self, place: int) -> int:
            return place

    growing = Growing()
    loader = ElasticDataLoader(growing, 2, progress=Progress(), ranks=Alone())
    growing.length = 7
    with pytest.raises(ConfigError, match="has changed its length"):
        next(iter(loader))


@pytest.mark.parametrize("option", ["sampler", "batch_sampler", "in_order"])
def test_options_that_it_decides_itself_are_refused(option: str) -> None:
    options: dict[str, Any] = {option: False}
    with pytest.raises(ConfigError):
        ElasticDataLoader(numbers(6), 2, progress=Progress(), ranks=Alone(), **options)


# --- shards -----------------------------------------------------------------------------------------------------------


def test_what_is_left_in_the_middle_is_closed_and_gone_on_with() -> None:
    opened = Opened([20] * 8)
    progress = Progress()
    loader = ElasticDataLoader(opened.data(), 8, progress=progress, ranks=Alone())
    found = list[int]()
    for _ in progress.remaining_epochs_until(1):
        for (batch,) in loader:
            found += batch.tolist()
            if len(found) == 80:
                break
        state = progress.state_dict()
    assert opened.opened == opened.closed == 8
    later, skipped = Progress(), Opened([20] * 8)
    loader = ElasticDataLoader(skipped.data(open_at=skipped.samples_at), 8, progress=later, ranks=Alone())
    later.load_state_dict(state)
    for _ in later.remaining_epochs_until(1):
        found += [number for (batch,) in loader for number in batch.tolist()]
    assert sorted(found) == list(range(160)) and skipped.read == 80  # nothing again: open_at goes there


@pytest.mark.parametrize(
    ("ranks", "batch", "most"),
    [
        (1, 64, 1.0),
        (4, 64, 1.0),
        (4, 16, 1.0),  # half of the lanes in turn
        (5, 64, 1.2),  # neighbours share a lane
        (4, 50, 1.6),
    ],
)
def test_ranks_read_the_shards_of_their_own_samples(ranks: int, batch: int, most: float) -> None:
    """Where each rank read all, it would be as many times as much as there are ranks."""
    assert read_per_sample([20] * 320, 32, ranks, batch) <= most + 0.005  # the last step may have fillers
