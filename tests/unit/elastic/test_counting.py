"""Ranks that count together: threads here, processes in tests/elastic/test_changing_sizes.py."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from deeppart.elastic import ShardedDataset
from deeppart.elastic.counting import settle
from deeppart.errors import ConfigError, RanksDisagreeError, RemoteRankError
from tests.unit.elastic.jobs import Alone

RANKS = 3


class Threads(Alone):
    """A rank that is a thread; all of them have one list."""

    def __init__(self, rank: int, said: list[str], barrier: threading.Barrier) -> None:
        super().__init__(rank, RANKS)
        self._said, self._barrier = said, barrier

    def gather(self, value: Any, what: str) -> list[Any]:
        self._said[self.rank] = json.dumps(value)
        self._barrier.wait(20)
        found = [json.loads(each) for each in self._said]
        self._barrier.wait(20)
        return found


def on_each(make: Callable[[int], ShardedDataset[Any]]) -> list[tuple[ShardedDataset[Any], Exception | None]]:
    """The data set of each rank after they have settled, and what was raised."""
    said, barrier = [""] * RANKS, threading.Barrier(RANKS)

    def run(rank: int) -> tuple[ShardedDataset[Any], Exception | None]:
        data = make(rank)
        try:
            settle(data, Threads(rank, said, barrier))
        except Exception as error:
            return data, error
        return data, None

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(run, range(RANKS)))


def test_each_shard_is_counted_by_one_rank() -> None:
    opened: dict[int, list[int]] = {rank: [] for rank in range(RANKS)}

    def make(rank: int) -> ShardedDataset[int]:
        def open_shard(shard: int) -> Iterator[int]:
            opened[rank].append(shard)
            yield from range(shard)

        return ShardedDataset([4, 0, 2, 9, 1], open_shard)

    for data, error in on_each(make):
        assert error is None and data.lengths is not None and data.lengths.tolist() == [4, 0, 2, 9, 1]
        assert data.counted and data.agreed
    assert opened == {0: [4, 9], 1: [0, 1], 2: [2]}


def test_lengths_that_were_given_are_not_counted() -> None:
    def make(rank: int) -> ShardedDataset[int]:
        return ShardedDataset([4, 0], lambda shard: 1 // 0, [4, 0])  # type: ignore[arg-type, return-value]

    assert all(error is None and not data.counted for data, error in on_each(make))


@pytest.mark.parametrize(
    ("shards", "options", "summary"),
    [
        (["a", "b"], {}, "numbers of shards"),
        (["a", "c", "b"], {}, "order"),
        (["a", "b", "c"], {"lengths": [1, 2, 1]}, "lengths of shards"),
        (["a", "b", "c"], {"lanes": 8}, "numbers of lanes"),
    ],
)
def test_other_shards_on_a_rank_are_named(shards: list[str], options: dict[str, Any], summary: str) -> None:
    def make(rank: int) -> ShardedDataset[str]:
        if rank == 2:
            return ShardedDataset(shards, lambda shard: [shard], **options)
        return ShardedDataset(["a", "b", "c"], lambda shard: [shard])

    for data, error in on_each(make):
        assert isinstance(error, RanksDisagreeError) and summary in error.summary and error.where == "rank 2"
        assert not data.agreed


def test_a_shard_that_cannot_be_read_ends_all_ranks() -> None:
    def make(rank: int) -> ShardedDataset[str]:
        return ShardedDataset(["1", "x", "2"], lambda shard: range(int(shard)))

    (_, first), (_, second), (_, third) = on_each(make)
    assert isinstance(second, ValueError) and second.__notes__ == ["while the samples of shard x were counted"]
    for error in (first, third):
        assert isinstance(error, RemoteRankError) and error.where == "rank 1" and "ValueError" in str(error)


def test_fewer_lanes_than_ranks_are_named() -> None:
    with pytest.raises(ConfigError, match="fewer lanes than ranks") as caught:
        settle(ShardedDataset(["a"], lambda shard: [shard], lanes=3), Alone(0, 4))
    assert "4 lanes or more" in str(caught.value)
