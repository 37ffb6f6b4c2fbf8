"""Collectives among many ranks, each of which is a generator: what arrives, and what it takes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest

from deeppart.comm import Operation, trees
from deeppart.comm.transport import Transport

SIZES = [1, 2, 3, 5, 8, 13, 64]
MANY = 256


class Network:
    """Messages that are in memory until their receivers take them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sent: dict[int, list[int]] = defaultdict(list)
        self.connected: dict[int, set[int]] = defaultdict(set)
        self.waiting: dict[Any, bytes] = {}
        self.moved = 0

    def run(self, begin: Callable[[trees.Collective, int], Operation[Any]]) -> list[Any]:
        """What the collective returns on each rank."""
        found: dict[int, Any] = {}
        running = {rank: begin(self._collective(rank), rank) for rank in range(self.size)}
        while running:
            before = self.moved, len(running)
            for rank, operation in list(running.items()):
                try:
                    next(operation)
                except StopIteration as end:
                    found[rank] = end.value
                    del running[rank]
            assert (self.moved, len(running)) != before, "the ranks wait for each other"
        assert not self.waiting, "messages that nobody receives"
        return [found[rank] for rank in range(self.size)]

    def _collective(self, rank: int) -> trees.Collective:
        return trees.Collective(cast(Transport, _Rank(self, rank)), 0, 1)


class _Rank:
    def __init__(self, network: Network, rank: int) -> None:
        self.network, self.rank, self.size = network, rank, network.size

    def send(self, to: int, key: Any, data: bytes) -> Operation[None]:
        assert (self.rank, to, key) not in self.network.waiting, "two messages with one number"
        self.network.waiting[self.rank, to, key] = data
        self.network.moved += 1
        self.network.sent[self.rank].append(len(data))
        self.network.connected[self.rank].add(to)
        self.network.connected[to].add(self.rank)
        return iter(())  # type: ignore[return-value]

    def receive(self, source: int, key: Any) -> Operation[Any]:
        while (source, self.rank, key) not in self.network.waiting:
            yield False
        self.network.moved += 1
        return np.frombuffer(self.network.waiting.pop((source, self.rank, key)), dtype=np.uint8)


def of(rank: int, to: int = 0) -> bytes:
    """Data of any length, often none."""
    return b"" if (rank + to) % 3 == 1 else f"{rank}>{to}".encode() * (rank % 4 + 1)


@pytest.mark.parametrize("size", SIZES)
def test_everything_arrives(size: int) -> None:
    everyone = [of(rank) for rank in range(size)]
    assert Network(size).run(lambda each, rank: trees.allgather(each, of(rank))) == [everyone] * size
    gathered = Network(size).run(lambda each, rank: trees.gather(each, of(rank)))
    assert gathered == [everyone] + [None] * (size - 1)
    for root in {0, size // 2, size - 1}:

        def from_root(each: trees.Collective, rank: int, root: int = root) -> Operation[bytes]:
            return trees.broadcast(each, of(5) if rank == root else None, root)

        found = Network(size).run(from_root)
        assert found == [of(5)] * size
    exchanged = Network(size).run(lambda each, rank: trees.exchange(each, [of(rank, to) for to in range(size)]))
    assert exchanged == [[of(rank, to) for rank in range(size)] for to in range(size)]
    most = Network(size).run(lambda each, rank: trees.maximum(each, np.array([rank, -rank, 7])))
    assert all(each.tolist() == [size - 1, 0, 7] for each in most)


def collectives() -> Iterator[tuple[str, Callable[[trees.Collective, int], Operation[Any]], int]]:
    """Name, collective, and how many bytes of data a rank sends or passes on, at most."""
    yield "maximum", lambda each, rank: trees.maximum(each, np.zeros(32, np.int64)), 256 * 8
    yield "nothing to say", lambda each, rank: trees.allgather(each, b""), 0
    yield "one has something to say", lambda each, rank: trees.allgather(each, b"x" * 100 * (rank == 7)), 100 * 8
    yield "all have", lambda each, rank: trees.allgather(each, b"x" * 100), 100 * (MANY - 1)
    yield "commit", lambda each, rank: trees.gather(each, b"x" * 200), 200 * (MANY // 2)
    yield "result", lambda each, rank: trees.broadcast(each, b"x" * 99 if rank == 0 else None, 0), 99 * 8
    near = {1, 2, 3}
    yield (
        "exchange",
        lambda each, rank: trees.exchange(
            each, [b"x" * 50 if (to - rank) % MANY in near else b"" for to in range(MANY)]
        ),
        50 * 4,
    )
    yield "keepers", lambda each, rank: trees.exchange(each, [b"x" * 60] * MANY), 60 * (MANY // 2) * 8


@pytest.mark.parametrize(("name", "begin", "data_bytes"), [pytest.param(*each, id=each[0]) for each in collectives()])
def test_what_it_costs_each_of_256_ranks(name: str, begin: Any, data_bytes: int) -> None:
    network = Network(MANY)
    network.run(begin)
    rounds = int(math.log2(MANY))
    assert max(map(len, network.sent.values())) <= rounds
    assert max(map(len, network.connected.values())) <= 2 * rounds
    # A message has its number of blocks, and of each block its number and length.
    heads = 8 * rounds + 16 * data_bytes // 50
    assert max(map(sum, network.sent.values())) <= data_bytes + heads
