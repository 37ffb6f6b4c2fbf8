"""Lists of shards: what they must be, ranks that count them together, the places of samples, and reading on."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppart.elastic import ShardedDataset
from deeppart.elastic.shards import Lanes, SampleIndex, ShardReader, agree_on_lengths
from deeppart.errors import ConfigError, RemoteRankError
from tests.unit.comm.worlds import on_all
from tests.unit.elastic.jobs import Alone, Opened


def made(shards: list[Any], lengths: Any = None, **options: Any) -> ShardedDataset[Any]:
    return ShardedDataset(shards, lambda shard: [shard], lengths, **options)


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ([1], "shape"),
        ([1, 2, 3], "shape"),
        ([1, -2], "-2 for shard b"),
        ([1.0, 2.0], "float64"),
        ([[1, 2]], "shape"),
        ([2**62, 1], "4,611,686,018,427,387,905"),
    ],
)
def test_impossible_lengths_are_named(lengths: Any, found: str) -> None:
    with pytest.raises(ConfigError, match="invalid lengths") as caught:
        made(["a", "b"], lengths)
    assert found in str(caught.value)


# --- ranks that count together: threads here, processes in tests/elastic/test_changing_sizes.py -----------------------


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
    made = [make(rank) for rank in range(RANKS)]
    errors = on_all(RANKS, lambda rank: agree_on_lengths(made[rank], Threads(rank, said, barrier)))
    return list(zip(made, errors, strict=True))


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


def test_a_shard_that_cannot_be_read_ends_all_ranks() -> None:
    def make(rank: int) -> ShardedDataset[str]:
        return ShardedDataset(["1", "x", "2"], lambda shard: range(int(shard)))

    (_, first), (_, second), (_, third) = on_each(make)
    assert isinstance(second, ValueError) and second.__notes__ == ["while counting the samples of shard x"]
    for error in (first, third):
        assert isinstance(error, RemoteRankError) and error.where == "rank 1" and "ValueError" in str(error)


# --- places and samples -----------------------------------------------------------------------------------------------


def lanes_of(lengths: list[int], count: int, seed: int = 0) -> Lanes:
    return Lanes.of(np.array(lengths), count, np.random.default_rng(seed).permutation(len(lengths)))


def in_steps(lanes: Lanes, steps: list[int]) -> list[list[tuple[int, int, int]]]:
    """The samples of steps of so many samples, and of a last one with all that are left."""
    ends = np.minimum(np.cumsum([0, *steps]), lanes.ends[-1]).tolist()
    return [lanes.locate(first, end) for first, end in pairwise([*ends, int(lanes.ends[-1])])]


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.integers(1, 14),
    st.integers(0, 5),
    st.lists(st.integers(1, 20), max_size=12),
)
def test_every_sample_has_one_place_and_lanes_are_read_in_order(
    lengths: list[int], count: int, seed: int, steps: list[int]
) -> None:
    lanes = lanes_of(lengths, count, seed)
    found = [spot for step in in_steps(lanes, steps) for spot in step]
    assert sorted(spot[1:] for spot in found) == [
        (shard, offset) for shard, length in enumerate(lengths) for offset in range(length)
    ]
    line = [(shard, offset) for shard in lanes.order.tolist() for offset in range(lengths[shard])]
    places = {spot: place for place, spot in enumerate(line)}
    by_lane = [[places[spot[1:]] for spot in found if spot[0] == lane] for lane in range(count)]
    assert [place for lane in by_lane for place in lane] == list(range(len(line)))  # neighbouring runs, each in order
    of_lanes = [len(lane) for lane in by_lane[: lanes.count]]
    assert max(of_lanes) - min(of_lanes) <= 1 and lanes.count == min(count, len(lengths))


# --- reading on in shards ---------------------------------------------------------------------------------------------


def reader(opened: Opened, *, at: bool = False) -> ShardReader:
    return ShardReader(opened.data(open_at=opened.samples_at if at else None))


def wanted(opened: Opened, number: int, offset: int, lane: int = 0, length: int | None = None) -> SampleIndex:
    return SampleIndex(
        lane, number, opened.shards()[number], offset, opened.lengths[number] if length is None else length
    )


def numbers(reading: ShardReader, samples: list[SampleIndex]) -> list[int]:
    return [number for (number,) in reading.__getitems__(samples)]


def test_a_lane_reads_on_and_opens_each_shard_once() -> None:
    opened = Opened([4, 3])
    reading = reader(opened)
    assert numbers(reading, [wanted(opened, 0, 0), wanted(opened, 0, 1)]) == [0, 1]
    assert numbers(reading, [wanted(opened, 0, 3), wanted(opened, 1, 0)]) == [3, 4]  # another rank has had 2
    assert (opened.opened, opened.closed, opened.read) == (2, 1, 5)
    assert numbers(reading, [wanted(opened, 0, 2)]) == [2]  # a new pass, for instance
    assert opened.opened == 3
    reading.close()
    assert opened.closed == 3
