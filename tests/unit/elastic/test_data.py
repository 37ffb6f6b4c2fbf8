"""What a sampler hands out; what a checkpoint has of a data set beside the place, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch.utils.data import IterableDataset

from deeppart.elastic import Batch, ElasticSampler, Place, ShardedDataset, permuted
from deeppart.elastic.data import Data, data_of
from deeppart.errors import ConfigError, RestoreError
from tests.unit.elastic.jobs import Alone, numbers


@pytest.mark.parametrize("length", [30, 70_000])
def test_it_goes_on_from_a_place_with_the_order_of_the_epoch(length: int) -> None:
    seen = length - 25
    sampler = ElasticSampler(length, seed=5, rank=1, ranks=2)
    sampler.begin(Place(epoch=3, passes=1, seen=seen, batch=Batch(10)))
    found = list(sampler)
    order = permuted(np.arange(seen, length), length, 5, 3, 1).tolist()
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


def of(data: Any) -> Data:
    return data_of(data, seed=0, ranks=Alone(), shuffle=True, drop_last=False)


def shards(lengths: list[int], *, given: bool = True, names: str = "shard", lanes: int = 8) -> ShardedDataset[int]:
    """Shards of so many samples; they are called by their number."""
    return ShardedDataset(
        list(range(len(lengths))),
        lambda shard: range(lengths[shard]),
        lengths if given else None,
        name_of=lambda shard: f"{names}-{shard}",
        lanes=lanes,
    )


def saved(data: Data) -> Any:
    return json.loads(json.dumps(data.state()))


def test_an_iterable_data_set_is_named() -> None:
    class Numbers(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield 1

    with pytest.raises(ConfigError, match="iterable") as caught:
        of(Numbers())
    assert "ShardedDataset" in str(caught.value)


@pytest.mark.parametrize(
    ("other", "summary"),
    [
        (shards([3, 4]), "the shards are others"),
        (shards([3, 4, 5, 0]), "the shards are others"),
        (shards([3, 4, 5], names="part"), "the shards are others, or in another order"),
        (shards([3, 5, 4]), "the shards are of other lengths"),
        (numbers(12), "another kind"),
    ],
)
def test_other_shards_than_then_are_named(other: Any, summary: str) -> None:
    state = saved(of(shards([3, 4, 5])))
    with pytest.raises(RestoreError, match=summary) as caught:
        of(other).take(state, "loader-3")
    assert "loader loader-3" in str(caught.value) and "start_over" in str(caught.value)


def test_shards_do_not_go_on_from_a_place_in_another_kind() -> None:
    with pytest.raises(RestoreError, match="another kind"):
        of(shards([3, 4])).take(saved(of(numbers(7))), "a")
    state = saved(of(shards([3, 4])))
    state["shards"]["version"] += 1
    with pytest.raises(RestoreError, match="another way"):
        of(shards([3, 4])).take(state, "a")
