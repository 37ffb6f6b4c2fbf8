"""One channel for a process, whatever shares it: loaders, sums, and ranks that agree on something meanwhile."""

from __future__ import annotations

import time

import pytest

from deeppart.elastic.ranks import ranks_of_job
from deeppart.stopping import agreement_of_job
from deeppart.stopping.agreement import OfJob

pytestmark = pytest.mark.mpi(min_size=2)


def test_what_is_under_way_is_not_disturbed_by_what_others_exchange() -> None:
    """Rank 0 is further in one call than the others when all of them begin another one."""
    ranks, agreement = ranks_of_job(), agreement_of_job()
    assert isinstance(agreement, OfJob)
    answers = list[bool]()
    for call in range(12):
        answers.append(agreement.ask(ranks.rank == 1 and call == 6))
        for _ in range(5 if ranks.rank == 0 else 0):
            time.sleep(0.01)
            go_on(agreement)
        assert ranks.gather([ranks.rank, call], "comparing") == [[rank, call] for rank in range(ranks.size)]
    assert answers == [False] * 7 + [True] * 5
    assert not agreement.agree(False) and agreement.agree(ranks.rank == 0)
    agreement.finish()


def go_on(agreement: OfJob) -> None:
    """As far as it goes without the others."""
    if agreement._operation is not None:
        try:
            next(agreement._operation)
        except StopIteration as stop:
            agreement._operation, agreement._said = None, stop.value
