"""Operations: advanced by whoever has them, until they end or the time is over."""

from __future__ import annotations

import pytest

from deeppart.comm import Operation, RunningOperation, SingleComm, rank_names
from deeppart.errors import CommError, PeerTimeoutError


def steps(*moved: bool, result: str = "result") -> Operation[str]:
    yield from moved
    return result


class Counting(SingleComm):
    """Of two ranks, of which the other is never heard of; counts how often it is told that this one waits."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.heartbeats = 2, 0
        self.abandoned: set[int] = set()

    def heartbeat(self) -> None:
        self.heartbeats += 1

    def abandoned_by(self) -> set[int]:
        return self.abandoned


def test_after_its_timeout_the_ranks_that_are_missing_are_named_and_the_channel_is_broken() -> None:
    comm = Counting()
    drive = RunningOperation(comm, steps(*[False] * 9), "commit of step 3", 10.0)
    assert not drive.advance(10.0)
    with pytest.raises(PeerTimeoutError, match=r"commit of step 3: waited 10\.5 s for rank 1"):
        drive.advance(10.5)
    assert isinstance(comm.broken, PeerTimeoutError)
    with pytest.raises(CommError, match="can no longer communicate with each other"):
        RunningOperation(comm, steps(True), "the next one", 10.0).advance(0.0)


def test_who_waits_is_told_once_until_it_gets_further() -> None:
    comm = Counting()
    drive = RunningOperation(comm, steps(False, False, True, False, False), "a test", 1000.0)
    told = []
    for _ in range(5):
        drive.advance(999.0)
        told.append(comm.heartbeats)
    assert told == [1, 1, 1, 2, 2]


def test_a_rank_that_has_abandoned_the_channel_is_not_waited_for() -> None:
    comm = Counting()
    drive = RunningOperation(comm, steps(*[False] * 9), "commit of step 3", 1000.0)
    assert not drive.advance(999.0)
    comm.abandoned = {1}
    with pytest.raises(CommError, match="commit of step 3: rank 1 cannot take part any more"):
        drive.advance(999.0)
    assert comm.broken is not None


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], "no rank"),
        ([3], "rank 3"),
        ([3, 3], "rank 3"),
        ([0, 1], "ranks 0-1"),
        ([7, 0, 2, 1, 3], "ranks 0-3 and 7"),
        ([0, 2, 4], "ranks 0, 2 and 4"),
    ],
)
def test_rank_names(ranks: list[int], text: str) -> None:
    assert rank_names(ranks) == text
