"""Reductions between processes of their own; AdaptDL's tests have more."""

from __future__ import annotations

import pytest

from deeppart.elastic.adaptdl import env
from deeppart.elastic.adaptdl.conftest import elastic_multiprocessing
from deeppart.elastic.adaptdl.reducer import Reducer, default_reduce_fn


def test_one_replica_exchanges_nothing() -> None:
    reducer = Reducer(0, 1, "nowhere", 1)
    thing = object()
    assert reducer.allreduce(thing) is thing and reducer.broadcast(thing) is thing


def test_sums_in_place_where_the_type_has_it() -> None:
    first = [1]
    assert default_reduce_fn(first, [2]) is first and first == [1, 2]


@pytest.mark.parametrize("size", [1, 247, 248, 249, 5000])
def test_messages_of_any_length(size: int) -> None:
    @elastic_multiprocessing
    def job() -> int:
        if env.num_restarts() == 0:
            return 3
        rank = env.replica_rank()
        reducer = Reducer(rank, 3, "127.0.0.1", env.master_port())
        mine = bytes([rank]) * (size + rank)
        later = [reducer.allreduce_async([each]) for each in (mine, b"short", mine)]
        found = [each.result() for each in later]
        whole = [bytes([each]) * (size + each) for each in range(3)]
        assert found == [whole, [b"short"] * 3, whole]
        assert later[0].result() is found[0]  # asked for again
        assert reducer.broadcast(rank) == 0
        return 0

    job()
