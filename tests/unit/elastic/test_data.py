"""What a sampler hands out; what a checkpoint has of a data set beside the place, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from torch.utils.data import IterableDataset

from deeppart.elastic import Batch, DataPosition, ElasticSampler, ShardedDataset, permuted
from deeppart.elastic.data import ShardSampler, make_sampler
from deeppart.elastic.shards import SampleIndex
from deeppart.errors import ConfigError
from tests.unit.elastic.jobs import Alike, Alone


@pytest.mark.parametrize("length", [30, 70_000])
def test_it_goes_on_from_a_place_with_the_order_of_the_epoch(length: int) -> None:
    seen = length - 25
    sampler = ElasticSampler(length, seed=5, rank=1, ranks=2)
    sampler.begin(DataPosition(epoch=3, passes=1, seen=seen, batch=Batch(10)))
    found = list(sampler)
    order = permuted(np.arange(seen, length), length, 5, 3, 1).tolist()
    assert found == [order[5:10], order[15:20], order[23:25]]
    assert [micro_batch.seen for micro_batch in sampler.handed_out] == [seen + 10, seen + 20, seen + 25]
    sampler.begin(DataPosition(epoch=3, passes=1, seen=length, batch=Batch(10)))
    assert not list(sampler) and not sampler.handed_out


def test_of_shards_it_says_which_sample_of_which_is_meant() -> None:
    data = ShardedDataset(["a", "b"], lambda shard: [shard], [3, 5], lanes=2)
    sampler = ShardSampler(data, seed=0, rank=1, ranks=2, shuffle=False)
    sampler.length = 8
    sampler.begin(DataPosition(epoch=0, passes=0, seen=4, batch=Batch(4)))
    assert list(sampler) == [[SampleIndex(1, 1, "b", 3, 5), SampleIndex(1, 1, "b", 4, 5)]]
    orders = []
    shuffled = ShardSampler(data, seed=0, rank=0, ranks=1)
    shuffled.length = 8
    for epoch in range(8):
        shuffled.begin(DataPosition(epoch=epoch, passes=0, seen=0, batch=Batch(1)))
        orders.append(next(iter(shuffled))[0].shard)
    assert set(orders) == {"a", "b"}


def test_an_iterable_data_set_is_named() -> None:
    class Numbers(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 1

    with pytest.raises(ConfigError, match="iterable") as caught:
        make_sampler(Numbers(), seed=0, ranks=Alone(), shuffle=True, drop_last=False)
    assert "ShardedDataset" in str(caught.value)


def test_a_state_knows_no_ranks_and_is_small() -> None:
    states = []
    for ranks in (1, 5):
        data = ShardedDataset(range(2000), range, [50] * 2000, name_of=lambda shard: f"shard-{shard}")
        made = make_sampler(data, seed=0, ranks=Alike(0, ranks), shuffle=True, drop_last=False)
        states.append(json.dumps(made.state()))
    assert states[0] == states[1] and len(states[0]) < 300
