"""The handle of one checkpoint: waiting, asking, reporting, from any thread."""

from __future__ import annotations

import threading

import pytest

from deeppart.errors import CheckpointError, LevelNotRunError, PeerTimeoutError
from deeppart.pending import DONE, FAILED, RUNNING, Pending


def pending(*due: str) -> Pending:
    return Pending(7, frozenset(due or ("local", "persistent")))


def states(handle: Pending) -> dict[str, str]:
    return {name: level.state for name, level in handle.report.levels.items()}


def test_done_never_blocks_and_never_raises_for_a_failure() -> None:
    handle = pending()
    assert not handle.done("local") and not handle.done()
    handle.note_level("local", DONE)
    handle.note_level("persistent", FAILED, error=CheckpointError("no"))
    assert handle.done("local") and not handle.done("persistent") and not handle.done("parity")
    with pytest.raises(LevelNotRunError, match="'disk'"):
        handle.done("disk")


def test_it_shows_how_far_it_is_without_waiting_or_taking_note() -> None:
    handle = Pending(7, frozenset({"local", "parity", "persistent"}))
    assert repr(handle) == "<Pending step 7: local waiting, parity waiting, persistent waiting>"
    handle.note_level("local", DONE)
    handle.note_level("parity", RUNNING)
    handle.note_level("persistent", FAILED, error=CheckpointError("the disk is full" + "!" * 200))
    busy = threading.Event()
    release = threading.Event()

    def hold() -> None:
        with handle._changed:
            busy.set()
            release.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    busy.wait(60)
    shown = repr(handle)
    release.set()
    holder.join()
    assert shown.startswith("<Pending step 7: local done, parity running, persistent failed; the disk is full!")
    assert len(shown) < 200
    assert len(handle.failures()) == 1, "nobody has been told of it yet"
    assert repr(Pending(8, frozenset())) == "<Pending step 8: not due>"
    skipped = Pending(9, frozenset({"local"}))
    skipped.note_skipped()
    assert repr(skipped) == "<Pending step 9: local skipped>"


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_wait_ends_after_its_timeout_and_the_checkpoint_goes_on(timeout: float) -> None:
    handle = pending()
    handle.note_level("persistent", RUNNING)
    with pytest.raises(PeerTimeoutError) as caught:
        handle.wait("persistent", timeout=timeout)
    assert "step 7" in str(caught.value) and "running" in str(caught.value)
    handle.note_level("persistent", DONE)
    handle.wait("persistent", timeout=timeout)


def test_waiting_for_a_level_that_is_not_due() -> None:
    handle = pending("persistent")
    for level in ("local", "parity"):
        with pytest.raises(LevelNotRunError, match=f"'{level}': it is off") as caught:
            handle.wait(level, timeout=300)
        assert "['persistent']" in str(caught.value)
    with pytest.raises(LevelNotRunError, match="no level 'tape'"):
        handle.wait("tape")


def test_failures_are_counted_once_and_told_by_whichever_comes_first() -> None:
    handle = pending()
    handle.note_level("local", FAILED, error=CheckpointError("local"))
    assert [(str(each.error), each.is_news(1)) for each in handle.failures()] == [("local", True)]
    assert handle.failures() == []
    handle.note_level("persistent", FAILED, error=CheckpointError("persistent"))
    with pytest.raises(CheckpointError, match="persistent"):
        handle.wait("persistent", timeout=200)
    assert [each.is_news(0) for each in handle.failures()] == [False], "the caller has seen it in wait"
    assert handle.failures() == []


def test_what_all_ranks_know_is_told_by_rank_0() -> None:
    handle = pending()
    handle.note_level("local", FAILED, error=CheckpointError("full"), agreed=True)
    handle.note_level("persistent", FAILED, error=CheckpointError("a rank is gone"))
    failures = handle.failures()
    assert [[each.is_news(rank) for each in failures] for rank in (0, 1)] == [[True, True], [False, True]]
