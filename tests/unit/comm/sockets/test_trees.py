"""Collectives of messages: any number of ranks, messages that arrive in any order."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppart.comm import Operation
from deeppart.comm.base import immediately
from deeppart.comm.sockets import trees


class Network:
    """Messages that wait until somebody takes them; who sends to whom is noted."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.there: dict[tuple[int, int, int], bytes] = {}
        self.pairs: set[tuple[int, int]] = set()

    def of(self, rank: int) -> Messages:
        return Messages(self, rank)


class Messages:
    def __init__(self, network: Network, rank: int) -> None:
        self.rank, self.size, self._network = rank, network.size, network

    def send(self, to: int, number: int, data: bytes) -> Operation[None]:
        assert (self.rank, to, number) not in self._network.there, "two messages with one name"
        self._network.there[self.rank, to, number] = data
        self._network.pairs.add((self.rank, to))
        return immediately(None)

    def receive(self, source: int, number: int) -> Operation[bytes]:
        while (source, self.rank, number) not in self._network.there:
            yield False
        return self._network.there.pop((source, self.rank, number))


def results(network: Network, call: Callable[[Messages], Operation[Any]], seed: int) -> list[Any]:
    """What the call comes to on each rank; the ranks are advanced in any order."""
    chance = random.Random(seed)
    running = {rank: call(network.of(rank)) for rank in range(network.size)}
    found: list[Any] = [None] * network.size
    for _ in range(100_000):
        if not running:
            assert not network.there, "a message that nobody has taken"
            return found
        rank = chance.choice(list(running))
        try:
            next(running[rank])
        except StopIteration as stop:
            found[rank] = stop.value
            del running[rank]
    raise AssertionError(f"hangs: {sorted(running)}")


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=33), st.integers(0, 2**32), st.data())
def test_every_collective_of_any_number_of_ranks(texts: list[bytes], seed: int, data: st.DataObject) -> None:
    size = len(texts)
    root = data.draw(st.integers(0, size - 1))
    network = Network(size)
    assert results(network, lambda m: trees.allgather(m, texts[m.rank]), seed) == [texts] * size
    assert results(network, lambda m: trees.gather(m, texts[m.rank]), seed) == [texts] + [None] * (size - 1)
    told = results(network, lambda m: trees.broadcast(m, texts[root] if m.rank == root else None, root), seed)
    assert told == [texts[root]] * size
    values = [np.array([len(text), -rank, rank * seed]) for rank, text in enumerate(texts)]
    for found in results(network, lambda m: trees.maximum(m, values[m.rank]), seed):
        assert found.tolist() == np.max(values, axis=0).tolist()
    for rank in range(size):
        partners = {b for a, b in network.pairs if a == rank} | {a for a, b in network.pairs if b == rank}
        assert partners <= set(trees.neighbours(rank, size))


@pytest.mark.parametrize("size", [1, 2, 3, 64, 100, 4096])
def test_few_connections(size: int) -> None:
    most = 2 * math.ceil(math.log2(size)) if size > 1 else 0
    for rank in {0, size // 3, size - 1}:
        near = trees.neighbours(rank, size)
        assert len(near) <= most and rank not in near and all(0 <= each < size for each in near)
        assert all(rank in trees.neighbours(each, size) for each in near)
