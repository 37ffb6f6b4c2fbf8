"""What ranks take of a step, and places in the data."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppart.elastic.steps import Batch, DataPosition, from_state, micro_batches, to_state
from deeppart.errors import ConfigError

OLD, NEW = Batch(10), Batch(25, 1)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 5), st.integers(1, 12), st.data())
def test_a_step_is_divided_without_rest(
    length: int, size: int, accumulation: int, ranks: int, data: st.DataObject
) -> None:
    seen = data.draw(st.integers(0, length - 1))
    of_ranks = [micro_batches(seen, length, Batch(size, accumulation), rank, ranks) for rank in range(ranks)]
    whole = min(size, length - seen)
    places = [
        place
        for each in of_ranks
        for micro_batch in each
        for place in range(micro_batch.start, micro_batch.start + micro_batch.counted)
    ]
    assert places == list(range(seen, seen + whole))
    counts = [sum(micro_batch.counted for micro_batch in each) for each in of_ranks]
    assert max(counts) - min(counts) <= 1
    for each in of_ranks:
        assert [micro_batch.ends_step for micro_batch in each] == [False] * (len(each) - 1) + [True]
        assert {micro_batch.seen for micro_batch in each} == {seen + whole}
        assert len(each) <= accumulation + 1 and max(s.count for s in each) - min(s.count for s in each) <= 1
        assert all(micro_batch.count for micro_batch in each)  # a rank always has something to do


@given(st.integers(1, 40), st.integers(0, 4), st.integers(1, 9), st.integers(1, 40))
def test_the_mean_over_ranks_of_weighted_means_is_the_mean(size: int, accumulation: int, ranks: int, left: int) -> None:
    """With values that are the places themselves; as DistributedDataParallel does, over ranks that accumulate."""
    total = 0.0
    for rank in range(ranks):
        for micro_batch in micro_batches(100 - left, 100, Batch(size, accumulation), rank, ranks):
            mean = sum(range(micro_batch.start, micro_batch.start + micro_batch.count)) / micro_batch.count
            total += micro_batch.weight * mean / ranks
    had = min(size, left)
    assert total == pytest.approx(sum(range(100 - left, 100 - left + had)) / had, rel=1e-12)


@pytest.mark.parametrize(("size", "accumulation"), [(0, 0), (-1, 0), (4, -1), (True, 0), (4.0, 0), (1 << 63, 0)])
def test_an_impossible_batch_is_refused(size: int, accumulation: int) -> None:
    with pytest.raises(ConfigError, match="invalid batch"):
        Batch(size, accumulation)


def test_states_are_small_values_and_come_back() -> None:
    for position in (DataPosition(1, 2, 20, OLD), DataPosition(0, 0, 0, NEW)):
        state = json.loads(json.dumps(to_state(position, OLD, 7, 100, shuffle=True)))
        assert from_state(state, OLD, 100, shuffle=True, name="a") == (position, 7)
        assert from_state(state, Batch(6), 100, shuffle=True, name="a") == (replace(position, batch=Batch(6)), 7)
