"""Ranks in different calls are told who makes which."""

from __future__ import annotations

import pytest

from deeppart.comm.base import Comm
from deeppart.errors import RanksDisagreeError
from deeppart.save.disagreement import raise_disagreement
from tests.unit.comm.worlds import LIMIT_S, on_all, world


def told(calls: list[str]) -> list[str]:
    """What each rank is told."""

    def tell(comm: Comm) -> str:
        with pytest.raises(RanksDisagreeError) as caught:
            raise_disagreement(comm, calls[comm.rank], LIMIT_S)
        assert caught.value.where == f"rank {comm.rank}" and caught.value.summary.startswith(calls[comm.rank])
        return str(caught.value.found)

    with world(len(calls)) as comms:
        return on_all(len(calls), lambda rank: tell(comms[rank]))


def test_every_rank_is_told_what_each_has_called() -> None:
    found = told(["checkpoint(step=1)", "restore(step=None)"])
    assert found == ["rank 0: checkpoint(step=1), rank 1: restore(step=None)"] * 2
    assert told(["prepare()"] * 2)[0].endswith("not the same number of calls, or not all with `force`")


def test_of_many_ranks_eight_are_named() -> None:
    (found, *_) = told([f"checkpoint(step={rank})" for rank in range(10)])
    assert found.endswith("rank 7: checkpoint(step=7) ...")
