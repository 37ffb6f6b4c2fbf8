"""How much of a list of shards ranks read that they do not use, and how long an epoch takes to begin.

python -m benchmarks.elastic_shards
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deeppart.elastic import Batch, DataPosition, ElasticDataLoader, Progress, ShardedDataset
from deeppart.elastic.data import ShardSampler

#: (ranks, samples of a step), in 32 lanes.
CASES = ((1, 64), (4, 64), (4, 16), (5, 64), (4, 50), (8, 100), (3, 1000))
LANES = 32


@dataclass
class OneOf:
    """A rank whose others say the same as it does."""

    rank: int
    size: int

    def gather(self, value: Any, what: str) -> list[Any]:
        return [value] * self.size


@dataclass
class Numbers:
    """Shards of numbers.

    Attributes:
        lengths: samples of each.
        read: samples that came out of them.
    """

    lengths: list[int]
    read: int = field(default=0)

    def samples(self, shard: int) -> Iterator[int]:
        for number in range(self.lengths[shard]):
            self.read += 1
            yield number


def read_per_sample(lengths: list[int], lanes: int, ranks: int, batch: int) -> float:
    """Samples that all ranks read in an epoch, for one that is used."""
    numbers = Numbers(lengths)
    for rank in range(ranks):
        data = ShardedDataset(range(len(lengths)), numbers.samples, lengths, lanes=lanes)
        loader = ElasticDataLoader(data, batch, progress=Progress(), ranks=OneOf(rank, ranks), collate_fn=len)
        assert sum(loader) >= sum(lengths) // ranks - len(loader)
    return numbers.read / sum(lengths)


def begins_s(shards: int) -> tuple[float, float]:
    """Seconds of processor time for the first samples of an epoch, and for those of a later step."""
    lengths = [1000] * shards
    data = ShardedDataset(range(shards), lambda shard: range(1000), lengths)
    sampler = ShardSampler(data, seed=0, rank=0, ranks=1)
    sampler.length = sum(lengths)
    sampler.begin(DataPosition(0, 0, 0, Batch(256)))
    steps = iter(sampler)
    taken = []
    for _ in range(2):
        began = time.process_time()
        next(steps)
        taken.append(time.process_time() - began)
    return taken[0], taken[1]


def main() -> None:
    """Print the numbers."""
    draw = np.random.default_rng(0)
    of_one_length, uneven = [20] * 320, draw.integers(10, 31, 320).tolist()
    print(f"320 shards, {LANES} lanes: samples read for one that is used, shards of 20 samples, of 10 to 30")
    for ranks, batch in CASES:
        found = [read_per_sample(lengths, LANES, ranks, batch) for lengths in (of_one_length, uneven)]
        print(f"{ranks} ranks, {batch} samples a step: {found[0]:.2f} {found[1]:.2f}")
    for shards in (1000, 10**6):
        first, later = begins_s(shards)
        print(f"{shards:,} shards: an epoch begins after {first:.2f} s, a step of 256 takes {later * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
