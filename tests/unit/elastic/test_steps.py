"""What ranks take of a step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppart.elastic.steps import Batch, shares
from deeppart.errors import ConfigError


@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 5), st.integers(1, 12), st.data())
def test_a_step_is_divided_without_rest(
    length: int, size: int, accumulation: int, ranks: int, data: st.DataObject
) -> None:
    seen = data.draw(st.integers(0, length - 1))
    of_ranks = [shares(seen, length, Batch(size, accumulation), rank, ranks) for rank in range(ranks)]
    whole = min(size, length - seen)
    places = [place for each in of_ranks for share in each for place in range(share.start, share.start + share.counted)]
    assert places == list(range(seen, seen + whole))
    counts = [sum(share.counted for share in each) for each in of_ranks]
    assert max(counts) - min(counts) <= 1
    for each in of_ranks:
        assert [share.ends_step for share in each] == [False] * (len(each) - 1) + [True]
        assert {share.seen for share in each} == {seen + whole}
        assert len(each) <= accumulation + 1 and max(s.count for s in each) - min(s.count for s in each) <= 1
        assert all(share.count for share in each)  # a rank always has something to do


@given(st.integers(1, 40), st.integers(0, 4), st.integers(1, 9), st.integers(1, 40))
def test_the_mean_over_ranks_of_weighted_means_is_the_mean(size: int, accumulation: int, ranks: int, left: int) -> None:
    """With values that are the places themselves; as DistributedDataParallel does, over ranks that accumulate."""
    total = 0.0
    for rank in range(ranks):
        for share in shares(100 - left, 100, Batch(size, accumulation), rank, ranks):
            mean = sum(range(share.start, share.start + share.count)) / share.count
            total += share.weight * mean / ranks
    had = min(size, left)
    assert total == pytest.approx(sum(range(100 - left, 100 - left + had)) / had, rel=1e-12)


def test_a_rank_without_a_sample_fills_in() -> None:
    found = [shares(8, 10, Batch(4), rank, 4)[0] for rank in range(4)]
    assert [(share.start, share.count, share.counted, share.weight) for share in found] == [
        (8, 1, 1, 2.0), (9, 1, 1, 2.0), (8, 1, 0, 0.0), (8, 1, 0, 0.0),
    ]  # fmt: skip


@pytest.mark.parametrize(("size", "accumulation"), [(0, 0), (-1, 0), (4, -1), (True, 0), (4.0, 0), (1 << 63, 0)])
def test_an_impossible_batch_is_refused(size: int, accumulation: int) -> None:
    with pytest.raises(ConfigError, match="a batch is impossible"):
        Batch(size, accumulation)
