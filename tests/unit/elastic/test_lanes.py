"""Places and samples: every sample has one, whatever the shards and lanes, and lanes are read in order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppart.elastic.lanes import Lanes, Spot, laid


def lanes_of(lengths: list[int], count: int, seed: int = 0) -> Lanes:
    return laid(np.array(lengths), count, np.random.default_rng(seed).permutation(len(lengths)))


def in_steps(lanes: Lanes, steps: list[int]) -> list[list[Spot]]:
    """The samples of steps of so many samples, and of a last one with all that are left."""
    ends = np.minimum(np.cumsum([0, *steps]), lanes.ends[-1]).tolist()
    return [lanes.spots(first, end) for first, end in pairwise([*ends, int(lanes.ends[-1])])]


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
    assert sorted((spot.shard, spot.offset) for spot in found) == [
        (shard, offset) for shard, length in enumerate(lengths) for offset in range(length)
    ]
    line = [(shard, offset) for shard in lanes.order.tolist() for offset in range(lengths[shard])]
    places = {spot: place for place, spot in enumerate(line)}
    by_lane = [[places[s.shard, s.offset] for s in found if s.lane == lane] for lane in range(count)]
    assert [place for lane in by_lane for place in lane] == list(range(len(line)))  # neighbouring runs, each in order
    of_lanes = [len(lane) for lane in by_lane[: lanes.count]]
    assert max(of_lanes) - min(of_lanes) <= 1 and lanes.count == min(count, len(lengths))


@pytest.mark.parametrize("cut", [1, 2, 5, 11])
def test_a_step_is_handed_out_lane_by_lane(cut: int) -> None:
    lanes = lanes_of([5, 0, 20, 8, 3], 4)
    whole = lanes.spots(9, 20)
    assert [spot.lane for spot in whole] == sorted(spot.lane for spot in whole)
    assert lanes.spots(9, 20, 0, cut) + lanes.spots(9, 20, cut) == whole


def test_a_step_has_as_many_samples_of_each_lane_as_it_can() -> None:
    lanes = lanes_of([50] * 8, 8)
    assert [spot.lane for spot in lanes.spots(16, 32)] == [lane for lane in range(8) for _ in range(2)]
    assert sorted({spot.lane for spot in lanes.spots(30, 36)}) == [0, 1, 2, 3, 6, 7]


def test_of_shards_of_one_length_each_lane_begins_with_a_shard() -> None:
    lanes = lanes_of([10] * 24, 8)
    assert [spot.offset for spot in lanes.spots(0, 8)] == [0] * 8


def test_very_many_shards() -> None:
    lengths = np.full(1_000_000, 1000)
    lanes = laid(lengths, 64, np.arange(len(lengths))[::-1])
    assert lanes.spots(999_999_999, 1_000_000_000) == [Spot(63, 0, 999)]
    assert lanes.spots(0, 1) == [Spot(0, 999_999, 0)]
