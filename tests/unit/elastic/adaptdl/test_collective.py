"""The module's own reducer."""

from __future__ import annotations

import pytest

from deeppart.elastic.adaptdl import collective
from deeppart.elastic.adaptdl.conftest import elastic_multiprocessing
from deeppart.elastic.adaptdl.env import num_replicas, num_restarts, replica_rank
from deeppart.elastic.adaptdl.errors import UsageError


def test_used_before_it_is_connected_and_connected_twice() -> None:
    assert not collective.initialized()
    for call in (collective.teardown, lambda: collective.allreduce(1), lambda: collective.broadcast(1)):
        with pytest.raises(UsageError, match="not connected"):
            call()
    collective.initialize()
    with pytest.raises(UsageError, match="connected already"):
        collective.initialize()
    assert collective.initialized() and collective.allreduce(3) == 3
    collective.teardown()
    assert not collective.initialized()


@elastic_multiprocessing
def test_between_replicas() -> int:
    collective.initialize()
    assert collective.allreduce(replica_rank() + 1, max) == num_replicas()
    assert collective.allreduce_async({replica_rank()}, lambda a, b: a | b).result() == set(range(num_replicas()))
    assert collective.broadcast(replica_rank()) == 0
    collective.teardown()
    return [3, 2, 0][num_restarts()]
