"""The lease of the staging memory: it ends with the last reader, once, and a claim after that comes too late."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppart.errors import CheckpointError
from deeppart.model import Attempt
from deeppart.pending import DONE, Pending
from deeppart.save import Job, Reader, StagingLease
from deeppart.save.job import Progress

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


@pytest.mark.parametrize("_", range(20))
def test_store_and_flush_at_the_same_moment(_: int) -> None:
    """Either the flush gets the memory and keeps it, or it is free: never both."""
    lease, start, got = StagingLease("share", BOTH), threading.Barrier(2), list[str | None]()

    def claim() -> None:
        start.wait()
        got.append(lease.claim())

    thread = threading.Thread(target=claim)
    thread.start()
    start.wait()
    lease.stored()
    thread.join()
    assert got == [None] if lease.over else got == ["share"]


ATTEMPT = Attempt("a" * 32, "b" * 32, 0, 5, 1)


def job(*due: str) -> Job:
    failure = CheckpointError("no memory")
    return Job.of(ATTEMPT, frozenset(due), Pending(5, frozenset(due)), failure)


def test_a_level_that_is_complete_needs_no_files_while_what_it_replaces_goes() -> None:
    progress = Progress(["local", "persistent"])
    progress.complete("persistent")
    assert progress.needs() and not progress.needs("local")
    assert not progress.settle("local") and not progress.needs()
    assert progress.settle("persistent")


def test_levels_are_open_until_they_are_settled() -> None:
    progress = Progress(["local", "persistent"])
    assert progress.needs() and progress.needs("local")
    assert not progress.settle("local") and not progress.settle("local")
    assert progress.settle("persistent") and not progress.needs()


def test_other_ranks_wait_to_hear_of_levels_that_are_not_redundant() -> None:
    progress = Progress(["local", "partner", "parity", "persistent"])
    assert progress.unreported(["local", "partner", "parity", "persistent"]) == {"local", "persistent"}
    progress.report("local")
    assert progress.unreported(["local", "persistent"]) == {"persistent"} and progress.needs("persistent")


def test_it_is_on_nodes_when_all_levels_there_are_complete() -> None:
    assert not job("persistent").is_on_nodes()
    found = job("local", "partner", "persistent")
    found.pending.note_level("local", DONE)
    assert not found.is_on_nodes()
    found.pending.note_level("partner", DONE)
    assert found.is_on_nodes()
