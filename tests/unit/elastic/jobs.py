"""Jobs whose ranks are looked at one after the other, in one process: loaders need no exchange."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch.utils.data import TensorDataset

from deeppart.elastic import ElasticDataLoader, Progress, ShardedDataset

#: Makes the data set of one rank: of so many samples.
Makes = Callable[[int], Any]
#: Called after a step with the loader and the number of the step.
EachStep = Callable[[ElasticDataLoader, int], object]


@dataclass
class Alone:
    """A rank that is asked for nothing but its place."""

    rank: int = 0
    size: int = 1

    def gather(self, value: Any, what: str) -> list[Any]:
        assert self.size == 1, what
        return [value]


class Alike(Alone):
    """A rank whose others say the same as it does."""

    def gather(self, value: Any, what: str) -> list[Any]:
        return [value] * self.size


@dataclass
class Job:
    """A training of several runs, each on its own number of ranks.

    Attributes:
        seen: (epoch, sample) -> how often it was trained on, fillers left out.
        steps: the samples of each global step, with all ranks' together.
        data: of each rank; by default :func:`numbers`.
        weights: of each global step, the sum over ranks and micro-batches of weight / ranks.
        state: as the last run has saved it.
    """

    length: int
    batch: int
    epochs: int = 2
    options: dict[str, Any] = field(default_factory=dict)
    data: Makes | None = None
    seen: Counter[tuple[int, int]] = field(default_factory=Counter)
    steps: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    state: dict[str, Any] | None = None

    def run(
        self,
        ranks: int,
        most_steps: int = 10**9,
        each_step: Callable[[ElasticDataLoader, int], None] | None = None,
    ) -> None:
        """Train for so many steps, or to the end; all ranks save the same."""
        found: list[tuple[list[tuple[int, list[int]]], list[float], dict[str, Any]]] = [
            self._rank(rank, ranks, most_steps, each_step) for rank in range(ranks)
        ]
        assert all(state == found[0][2] for _, _, state in found)
        self.state = found[0][2]
        for of_step in zip(*(steps for steps, _, _ in found), strict=True):
            samples = [sample for _, each in of_step for sample in each]
            self.steps.append((of_step[0][0], tuple(sorted(samples))))
            self.seen.update((of_step[0][0], sample) for sample in samples)
        self.weights += [sum(each) for each in zip(*(weights for _, weights, _ in found), strict=True)]

    def _rank(
        self, rank: int, ranks: int, most_steps: int, each_step: EachStep | None
    ) -> tuple[list[tuple[int, list[int]]], list[float], dict[str, Any]]:
        progress = Progress()
        loader: ElasticDataLoader = ElasticDataLoader(
            numbers(self.length) if self.data is None else self.data(self.length),
            self.batch,
            progress=progress,
            ranks=Alone(rank, ranks) if self.data is None else Alike(rank, ranks),
            **self.options,
        )
        if self.state is not None:
            progress.load_state_dict(self.state)
        steps: list[tuple[int, list[int]]] = []
        weights: list[float] = []
        samples: list[int] = []
        weight = 0.0
        for epoch in progress.remaining_epochs_until(self.epochs):
            for (batch,) in loader:
                assert len(batch) == loader.counted or not loader.counted
                samples += batch.tolist()[: loader.counted]
                weight += loader.weight / ranks
                if not loader.ends_step:
                    continue
                steps.append((epoch, samples))
                weights.append(weight)
                samples, weight = [], 0.0
                if each_step is not None:
                    each_step(loader, len(steps))
                if len(steps) == most_steps:
                    return steps, weights, progress.state_dict()
        return steps, weights, progress.state_dict()

    def whole(self) -> bool:
        """True if every sample of every epoch was trained on exactly once."""
        return self.seen == Counter((epoch, sample) for epoch in range(self.epochs) for sample in range(self.length))


def numbers(length: int) -> TensorDataset:
    return TensorDataset(torch.arange(length))


def same_steps(runs: Sequence[tuple[int, int]], job: Job) -> Job:
    """A job run on several numbers of ranks, one after the other: (ranks, steps)."""
    for ranks, steps in runs:
        job.run(ranks, steps)
    return job


@dataclass
class Opened:
    """Shards of numbers, and what was read of them.

    Attributes:
        lengths: samples of each shard.
        opened: how many shards were, and how many are closed again.
        read: samples that came out of shards.
    """

    lengths: Sequence[int]
    opened: int = 0
    closed: int = 0
    read: int = 0

    def shards(self) -> list[tuple[int, int]]:
        """(first number, one after the last) of each."""
        ends = list(accumulate(self.lengths, initial=0))
        return list(pairwise(ends))

    def samples(self, shard: tuple[int, int]) -> Iterator[tuple[int]]:
        yield from self.samples_at(shard, 0)

    def samples_at(self, shard: tuple[int, int], start: int) -> Iterator[tuple[int]]:
        self.opened += 1
        try:
            for number in range(shard[0] + start, shard[1]):
                self.read += 1
                yield (number,)
        finally:
            self.closed += 1

    def data(self, length: int | None = None, *, lanes: int = 8, **options: Any) -> ShardedDataset[tuple[int, int]]:
        """Of these shards; their lengths are given."""
        assert length in (None, sum(self.lengths))
        return ShardedDataset(self.shards(), self.samples, self.lengths, lanes=lanes, **options)


def uneven(length: int) -> list[int]:
    """Lengths of shards: 0 to 16 samples, so many together."""
    found = list[int]()
    while sum(found) < length:
        found.append(min(length - sum(found), 7 * len(found) % 17))
    return found
