"""The garbage collector does not run while documents of many leaves are made."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from deeppart import _gc
from deeppart._gc import collection_paused
from deeppart.state.document.part_document import PartDocument
from deeppart.state.tensors.leaves import LeafType

LEAVES = 20_000


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


def test_no_collection_begins_in_between(collections: list[int]) -> None:
    with collection_paused():
        kept = [[number] for number in range(100_000)]
        assert collections == []
    assert gc.isenabled()
    kept += [[number] for number in range(100_000)]
    assert collections


def test_pauses_may_overlap_and_nest() -> None:
    first, second = collection_paused(), collection_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()  # the other is still under way
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_who_has_switched_it_off_finds_it_off() -> None:
    gc.disable()
    try:
        with collection_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_threads_leave_it_as_it_was() -> None:
    def pause() -> None:
        for _ in range(200):
            with collection_paused():
                assert not gc.isenabled()

    threads = [threading.Thread(target=pause) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
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


def test_a_document_of_many_leaves_causes_none(collections: list[int]) -> None:
    types = [LeafType("torch", "float32", (number, 3)) for number in range(LEAVES)]
    nothing = np.zeros(LEAVES, dtype=np.bool_)
    tree = {"kind": "list", "items": [["leaf", number] for number in range(LEAVES)]}
    document = PartDocument(tree, types, {}, nothing, nothing[:0], [], True)
    gc.collect()
    collections.clear()
    assert len(document.meta()) > LEAVES
    assert 2 not in collections
