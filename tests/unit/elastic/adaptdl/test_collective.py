"""Reductions between replicas."""

from __future__ import annotations

import pytest

from deeppart.elastic.adaptdl import collective
from deeppart.elastic.adaptdl.env import num_replicas, num_restarts, replica_rank
from deeppart.errors import ConfigError
from tests.unit.elastic.adaptdl.replicas import elastic_multiprocessing


def test_used_before_it_is_connected_and_connected_twice() -> None:
    assert not collective.initialized()
    for call in (collective.teardown, lambda: collective.allreduce(1)):
        with pytest.raises(ConfigError, match="not connected"):
            call()
    collective.initialize()
    with pytest.raises(ConfigError, match="connected already"):
        collective.initialize()
    assert collective.initialized() and collective.allreduce(3) == 3
    collective.teardown()
    assert not collective.initialized()


@elastic_multiprocessing
def test_between_replicas() -> int:
    collective.initialize()
    assert collective.allreduce(replica_rank() + 1, max) == num_replicas()
    assert collective.allreduce({replica_rank()}, lambda a, b: a | b) == set(range(num_replicas()))
    assert collective.allreduce([replica_rank()]) == list(range(num_replicas()))
    assert collective.broadcast(replica_rank()) == 0
    collective.teardown()
    return [3, 2, 0][num_restarts()]
