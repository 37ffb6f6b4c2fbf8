"""What a sampler hands out, and what it notes of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from deeppart.elastic import Batch, ElasticSampler, Place, ShardedDataset, permuted
from deeppart.elastic.sampler import ShardSampler
from deeppart.elastic.shard_reader import Wanted


@pytest.mark.parametrize("length", [30, 70_000])
def test_it_goes_on_from_a_place_with_the_order_of_the_epoch(length: int) -> None:
    seen = length - 25
    sampler = ElasticSampler(length, seed=5, rank=1, ranks=2)
    sampler.begin(Place(epoch=3, passes=1, seen=seen, batch=Batch(10)))
    found = list(sampler)
    order = permuted(range_of(seen, length), length, 5, 3, 1).tolist()
    assert found == [order[5:10], order[15:20], order[23:25]]
    assert [share.seen for share in sampler.handed_out] == [seen + 10, seen + 20, seen + 25]
    sampler.begin(Place(epoch=3, passes=1, seen=length, batch=Batch(10)))
    assert not list(sampler) and not sampler.handed_out


def test_what_is_decided_while_it_runs_holds_from_its_step_on() -> None:
    place = Place(epoch=0, passes=0, seen=0, batch=Batch(4))
    sampler = ElasticSampler(20, seed=0, rank=0, ranks=1, shuffle=False)
    sampler.begin(place)
    going = iter(sampler)
    assert [len(next(going)), len(next(going))] == [4, 4]
    sampler.decide(Place(0, 0, 4, Batch(4), ((12, Batch(6)),)))
    assert [len(each) for each in going] == [4, 6, 2]


def range_of(start: int, end: int) -> npt.NDArray[np.int64]:
    return np.arange(start, end)


def test_of_shards_it_says_which_sample_of_which_is_meant() -> None:
    data = ShardedDataset(["a", "b"], lambda shard: [shard], [3, 5], lanes=2)
    sampler = ShardSampler(data, seed=0, rank=1, ranks=2, shuffle=False)
    sampler.length = 8
    sampler.begin(Place(epoch=0, passes=0, seen=4, batch=Batch(4)))
    assert list(sampler) == [[Wanted(1, 1, "b", 3, 5), Wanted(1, 1, "b", 4, 5)]]
    orders = []
    shuffled = ShardSampler(data, seed=0, rank=0, ranks=1)
    shuffled.length = 8
    for epoch in range(8):
        shuffled.begin(Place(epoch=epoch, passes=0, seen=0, batch=Batch(1)))
        orders.append(next(iter(shuffled))[0].shard)
    assert set(orders) == {"a", "b"}
