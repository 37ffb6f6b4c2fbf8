"""The lease of the staging memory: it ends with the last reader, once, and a claim after that comes too late."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppart.save.lease import Reader, StagingLease

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


def test_a_share_in_a_file_frees_the_memory() -> None:
    lease, freed = StagingLease("share", BOTH), list[int]()
    lease.when_over(lambda: freed.append(1))
    assert not lease.over and lease.memory == "share"
    lease.stored()
    assert lease.over and lease.memory is None and lease.claim() is None and freed == [1]
    lease.done(*BOTH)
    assert freed == [1], "it is over once"


def test_a_flush_that_has_claimed_the_memory_keeps_it() -> None:
    lease = StagingLease("share", BOTH)
    assert lease.claim() == "share"
    lease.stored()
    assert not lease.over and lease.memory == "share" and lease.claim() == "share"
    lease.done(Reader.FLUSH)
    assert lease.over


def test_a_share_that_is_in_no_file_is_kept_for_the_flush() -> None:
    lease = StagingLease("share", BOTH)
    lease.done(Reader.STORE)
    assert not lease.over and lease.claim() == "share"


def test_without_a_persistent_level_there_is_nothing_to_claim() -> None:
    lease = StagingLease("share", (Reader.STORE,))
    assert lease.claim() is None and not lease.over
    lease.stored()
    assert lease.over


def test_without_memory_it_is_over_from_the_start() -> None:
    lease, freed = StagingLease[str](None, BOTH), list[int]()
    lease.when_over(lambda: freed.append(1))
    assert lease.over and lease.claim() is None and freed == [1]
    lease.keep(Reader.CAPTURE)
    assert lease.over


def test_what_may_still_be_written_to_is_never_free() -> None:
    lease = StagingLease("share", BOTH)
    lease.keep(Reader.CAPTURE)
    lease.stored()
    lease.done(*BOTH)
    assert not lease.over and lease.memory == "share"


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
