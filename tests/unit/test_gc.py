"""The garbage collector does not run while documents of many leaves are made."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from deeppart import _gc
from deeppart._gc import collection_paused


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """Generations that were collected meanwhile."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


def test_pauses_may_overlap_and_nest() -> None:
    first, second = collection_paused(), collection_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()  # the other is still under way
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_a_process_forked_meanwhile_collects_and_can_pause() -> None:
    """Another thread may have held the lock at that moment; nobody gives it back there."""
    with collection_paused(), _gc._lock:
        child = os.fork()
        if child == 0:
            good = gc.isenabled()
            with collection_paused():
                good = good and not gc.isenabled()
            os._exit(0 if good and gc.isenabled() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gc.isenabled()
