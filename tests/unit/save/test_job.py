"""The lease of the staging memory: it ends with the last reader, once, and a claim after that comes too late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deeppart.errors import CheckpointError
from deeppart.model import Attempt
from deeppart.pending import Pending
from deeppart.save import Job, Reader, StagingLease

BOTH = (Reader.STORE, Reader.FLUSH)
#: What may be done to a lease, by whom it is done in the pipeline.
STEPS = ("claim", "stored", "store is done", "flush is done", "keep")


def apply(lease: StagingLease[str], step: str) -> str | None:
    if step == "claim":
        return lease.claim()
    if step == "keep":
        lease.keep(Reader.CAPTURE)
    elif step == "stored":
        lease.stored()
    else:
        lease.done(Reader.STORE if step == "store is done" else Reader.FLUSH)
    return None


def test_without_memory_it_is_over_from_the_start() -> None:
    lease, freed = StagingLease[str](None, BOTH), list[int]()
    lease.when_over(lambda: freed.append(1))
    assert lease.over and lease.claim() is None and freed == [1]
    lease.keep(Reader.CAPTURE)
    assert lease.over


@given(st.lists(st.sampled_from(STEPS)))
def test_any_order(steps: list[str]) -> None:
    """A model that knows only who has not said that it is done."""
    lease, freed = StagingLease("share", BOTH), list[int]()
    lease.when_over(lambda: freed.append(1))
    reading, claimed = {"store", "flush"}, False
    for step in steps:
        if step == "claim":
            claimed = claimed or "flush" in reading
        elif step == "keep":
            reading |= {"capture"} if reading else set()
        else:
            reading -= {"store"} if step in ("stored", "store is done") else {"flush"}
            reading -= {"flush"} if step == "stored" and not claimed else set()
        answer = apply(lease, step)
        assert answer == ("share" if step == "claim" and "flush" in reading else None)
        assert lease.over is not bool(reading) and lease.memory == ("share" if reading else None)
        assert freed == ([] if reading else [1])


ATTEMPT = Attempt("a" * 32, "b" * 32, 0, 5, 1)


def job(*due: str) -> Job:
    failure = CheckpointError("no memory")
    return Job.of(ATTEMPT, frozenset(due), Pending(5, frozenset(due)), failure)
