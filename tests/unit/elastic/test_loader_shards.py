"""Lists of shards: every sample once in every epoch, in the same steps, on whatever ranks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.elastic_shards import read_per_sample
from deeppart.elastic import ElasticDataLoader, Progress
from deeppart.errors import ConfigError
from tests.unit.elastic.jobs import Alone, Job, Opened, same_steps, uneven

CHANGES = [(4, 3), (2, 4), (6, 2), (3, 1000)]


def job(lengths: list[int], batch: int, **more: Any) -> Job:
    return Job(sum(lengths), batch, data=Opened(lengths).data, **more)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("accumulation", [0, 2])
def test_a_job_that_changes_its_size_has_every_sample_once(shuffle: bool, accumulation: int) -> None:
    options = {"shuffle": shuffle, "accumulation": accumulation}
    found, straight = job(uneven(103), 10, options=options), job(uneven(103), 10, options=options)
    same_steps(CHANGES, found)
    straight.run(1)
    assert found.whole() and found.steps == straight.steps
    assert found.weights == pytest.approx([1.0] * len(found.weights))
    orders = [[samples for each, samples in found.steps if each == epoch] for epoch in (0, 1)]
    assert (orders[0] != orders[1]) == shuffle


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12),
    st.integers(1, 20),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(1, 7), st.integers(1, 9)), max_size=4),
)
def test_whatever_the_sizes(lengths: list[int], batch: int, accumulation: int, runs: list[tuple[int, int]]) -> None:
    options = {"accumulation": accumulation}
    found, straight = job(lengths, batch, options=options), job(lengths, batch, options=options)
    same_steps([(min(ranks, batch), steps) for ranks, steps in runs] + [(1, 10**9)], found)
    straight.run(1)
    assert found.whole() and found.steps == straight.steps


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(4, 30)), max_size=4))
def test_whatever_batches_are_changed_to(runs: list[tuple[int, int, int]]) -> None:
    """In the second step of each run; the sizes that are saved hold in the next run."""
    found = job(uneven(80), 8)
    for ranks, steps, size in [*runs, (2, 10**9, 5)]:
        found.run(ranks, steps, lambda loader, step, size=size: step == 2 and loader.set_batch(size))  # type: ignore[misc]
    assert found.whole()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 with torch 2.13
@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_are_ahead_change_nothing(kind: Any, workers: int) -> None:
    options = {"num_workers": workers, "persistent_workers": workers == 2, "loader": kind}
    found = job(uneven(120), 8, options=options)
    straight = job(uneven(120), 8)
    found.run(2, 4)
    found.run(1)
    straight.run(1)
    assert found.whole() and found.steps == straight.steps


def test_incomplete_steps_are_left_out() -> None:
    found = job(uneven(23), 5, options={"drop_last": True})
    found.run(2)
    assert len(found.steps) == 2 * 4


def test_two_loaders_over_one_list_do_not_disturb_each_other() -> None:
    opened = Opened([20] * 8)
    data = opened.data()
    first, second = (ElasticDataLoader(data, 8, progress=Progress(), ranks=Alone()) for _ in range(2))
    seen = Counter[int]()
    for (a,), (b,) in zip(first, second, strict=True):
        assert a.tolist() == b.tolist()
        seen.update(a.tolist())
    assert seen == Counter(range(160)) and opened.read == 2 * 160 and opened.opened == opened.closed == 2 * 8


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


@pytest.mark.parametrize("workers", [0, 1])
def test_a_shard_that_is_shorter_than_was_said_is_named(workers: int) -> None:
    opened = Opened([20] * 8)
    data = opened.data()
    whole = data.open_shard
    data.open_shard = lambda shard: whole((shard[0], min(shard[1], 159)))
    loader = ElasticDataLoader(data, 8, progress=Progress(), ranks=Alone(), num_workers=workers)
    steps = 0
    with pytest.raises(ConfigError, match="another length") as caught:
        for _ in loader:
            steps += 1
    text = str(caught.value)
    assert "shard (140, 160)" in text and "20 samples" in text and "19" in text and steps == 19


def test_a_length_of_the_loader_is_counted_when_it_is_asked_for() -> None:
    opened = Opened([20] * 8)
    data = opened.data()
    counted = type(data)(data.shards, data.open_shard)
    loader = ElasticDataLoader(counted, 50, progress=Progress(), ranks=Alone())
    assert loader.state_dict()["length"] is None and not opened.opened
    assert len(loader) == 4 and opened.read == 160
    assert loader.state_dict()["length"] == 160
    opened.read = 0
    assert sum(len(batch) for (batch,) in loader) == 160 == opened.read
