"""Sums over ranks that MPI connects, and a job of fewer ranks that goes on with them."""

from __future__ import annotations

from typing import Any

import pytest

from deeppart.elastic import Accumulator, ElasticDataLoader, Progress
from deeppart.elastic.ranks import ranks_of_job
from tests.unit.elastic.jobs import numbers

pytestmark = pytest.mark.mpi(min_size=4)


def test_every_sample_is_counted_once_on_all_ranks() -> None:
    """22 samples in steps of 5 on four ranks: in the last step two ranks fill in."""
    ranks = ranks_of_job()
    progress = Progress()
    loader = ElasticDataLoader(numbers(22), 5, progress=progress, ranks=ranks)
    sums = Accumulator(progress=progress, ranks=ranks)
    states: list[dict[str, Any]] = []
    for (batch,) in loader:
        sums.update(seen=len(batch), total=batch.sum(), last=ranks.rank == ranks.size - 1)
        states.append(progress.state_dict())
    with sums.synchronized():
        assert sums["seen"] == 22 and sums["total"] == sum(range(22))
        assert sums["last"] == 4  # of its five batches the last one is a filler
    assert [state["members"]["sums-0"]["sums"]["seen"] for state in states] == [5, 10, 15, 20, 22]
    everybody = ranks.gather(states, "comparing")
    assert all(each == states for each in everybody)
