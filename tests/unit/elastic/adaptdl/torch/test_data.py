"""Samples of each replica, and loaders that go on where they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from deeppart.elastic.adaptdl import checkpoint, collective, env
from deeppart.elastic.adaptdl.conftest import elastic_multiprocessing
from deeppart.elastic.adaptdl.errors import UsageError
from deeppart.elastic.adaptdl.torch import data as module
from deeppart.elastic.adaptdl.torch import remaining_epochs_until
from deeppart.elastic.adaptdl.torch.data import AdaptiveDataLoader, ElasticSampler


def of_all(length: int, replicas: int, index: int, shuffle: bool, epoch: int = 0) -> list[list[int]]:
    found = []
    for rank in range(replicas):
        sampler = ElasticSampler(TensorDataset(torch.zeros(length)), shuffle)
        sampler.num_replicas, sampler.rank = replicas, rank
        sampler.set_epoch(epoch, index)
        found.append(list(sampler))
        assert len(found[-1]) == len(sampler)
    return found


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_an_order_does_not_know_the_replicas(replicas: int, shuffle: bool) -> None:
    (order,) = of_all(20, 1, 0, shuffle)
    assert sorted(order) == list(range(20)) and (order == list(range(20))) is not shuffle
    for index in (0, 7, 19):
        shares = of_all(20, replicas, index, shuffle)
        together = [each for step in zip(*shares, strict=True) for each in step]
        assert together[: 20 - index] == order[index:]
        assert set(together[20 - index :]) <= set(order[:replicas])  # that all have as many


def test_a_further_pass_has_another_order_and_another_epoch_too() -> None:
    orders = {str(of_all(20, 1, index, True, epoch)) for index in (0, 20, 40) for epoch in (0, 1)}
    assert len(orders) == 6


def test_fewer_samples_than_replicas() -> None:
    assert of_all(2, 5, 0, False) == [[0], [1], [0], [1], [0]]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize("options", [{"sampler": [0]}, {"batch_sampler": [[0]]}])
def test_samplers_of_the_user_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"a (batch_)?sampler"):
        AdaptiveDataLoader(TensorDataset(torch.zeros(3)), **options)


def test_iterable_data_sets_are_refused() -> None:
    with pytest.raises(UsageError, match="an iterable data set"):
        AdaptiveDataLoader(Stream())


def test_it_is_a_data_loader() -> None:
    loader = AdaptiveDataLoader(TensorDataset(torch.zeros(10)), batch_size=4, drop_last=True)
    assert isinstance(loader, DataLoader) and len(loader) == 2 and loader.batch_size == 4
    assert (loader.current_local_bsz, loader.current_batch_size, loader.training) == (None, None, False)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_sample_once_whatever_the_replicas(workers: int) -> None:
    """Data that divides: 96 samples, batches of 12 on 1, 4, 2 and 3 replicas."""

    @elastic_multiprocessing
    def job() -> int:
        collective.initialize()
        loader = AdaptiveDataLoader(TensorDataset(torch.arange(96)), 12, shuffle=True, num_workers=workers)
        seen = Seen()
        checkpoint.load_state(seen)
        sizes = [4, 2, 3]
        for epoch in remaining_epochs_until(2):
            for number, (batch,) in enumerate(loader):
                assert len(batch) == loader.current_local_bsz and loader.current_batch_size == 12
                if number == 3 and env.num_restarts() < len(sizes):
                    checkpoint.save_all_states()  # the batch is not trained on yet
                    return sizes[env.num_restarts()]
                seen.new.update((epoch, sample) for sample in batch.tolist())
        seen.sync()
        assert seen.counts == Counter({(epoch, sample): 1 for epoch in range(2) for sample in range(96)})
        return 0

    job()


class Seen(checkpoint.State):
    """What all replicas have trained on."""

    def __init__(self) -> None:
        super().__init__("seen")
        self.counts: Counter[tuple[int, int]] = Counter()
        self.new: Counter[tuple[int, int]] = Counter()

    def sync(self) -> None:
        self.counts += collective.allreduce(self.new)
        self.new = Counter()

    def save(self, fileobj: Any) -> None:
        torch.save(dict(self.counts), fileobj)

    def load(self, fileobj: Any) -> None:
        self.counts = Counter(torch.load(fileobj))


def test_a_loop_with_larger_batches_lasts_until_it_is_worth_an_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    collective.initialize()
    progress = [0.0]
    monkeypatch.setattr(module, "get_progress", lambda: progress[0])
    loader = AdaptiveDataLoader(TensorDataset(torch.arange(20)), 4)
    loader.autoscale_batch_size(8)
    samples = []
    for _ in remaining_epochs_until(1):
        for (batch,) in loader:
            samples += batch.tolist()
            progress[0] += 0.5  # each step is worth half of one: two passes
    assert samples == [*range(20)] * 2


def test_a_pass_without_a_batch_is_not_gone_through_for_ever() -> None:
    collective.initialize()
    loader = AdaptiveDataLoader(TensorDataset(torch.arange(3)), 4, drop_last=True)
    assert list(loader) == []
    loader.autoscale_batch_size(8)
    with pytest.raises(UsageError, match="no batch"):
        list(loader)


def test_workers_have_seeds_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    collective.initialize()
    called: list[int] = []
    found = []
    for rank in ("0", "1"):
        monkeypatch.setenv("ADAPTDL_REPLICA_RANK", rank)
        torch.manual_seed(7)
        module._seeding(called.append, 4)(3)
        found.append(torch.initial_seed())
    assert found == [7, 11] and called == [3, 3]
