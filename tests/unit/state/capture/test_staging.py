"""Staging memory: reused, and touched in advance."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from deeppart.state.capture import staging as module
from deeppart.state.capture.staging import TOUCH_BYTES, Staging, staging_bytes
from tests.unit.smaps import smaps_bytes


def test_touching_takes_all_pages_and_changes_no_byte() -> None:
    staging = Staging()
    memory = staging.reserve(3 * TOUCH_BYTES + 12_345)
    staging_bytes(memory)[TOUCH_BYTES : TOUCH_BYTES + 5] = 7  # as if a share were being copied already
    before = smaps_bytes(memory.data_ptr(), "Rss")
    touched = staging.populate(lambda: True)
    if not touched:
        pytest.skip("this kernel has no MADV_POPULATE_WRITE")
    assert touched >= memory.numel() - 4096 and before < memory.numel() / 2
    assert smaps_bytes(memory.data_ptr(), "Rss") >= memory.numel() // 4096 * 4096
    assert np.flatnonzero(staging_bytes(memory)).tolist() == list(range(TOUCH_BYTES, TOUCH_BYTES + 5))


def test_touching_stops_when_it_is_told_to_and_outlives_a_release() -> None:
    staging = Staging()
    staging.reserve(8 * TOUCH_BYTES)
    asked = 0

    def is_wanted() -> bool:
        nonlocal asked
        asked += 1
        if asked == 2:
            staging.release()  # whoever touches holds the memory: nothing else can have come to its place
            staging.reserve(1 << 20)
        return asked < 4

    assert staging.populate(is_wanted) in (0, 3 * TOUCH_BYTES)
    assert Staging().populate(lambda: True) == 0


def test_a_kernel_that_cannot_leaves_it_to_the_first_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_madvise", lambda *arguments: -1)
    staging = Staging()
    staging.reserve(2 * TOUCH_BYTES)
    assert staging.populate(lambda: True) == 0


def test_other_threads_run_while_pages_are_touched() -> None:
    """It would be no background if it held the interpreter."""
    staging = Staging()
    staging.reserve(8 * TOUCH_BYTES)
    counted, done = 0, threading.Event()

    def touch() -> None:
        staging.populate(lambda: True)
        done.set()

    thread = threading.Thread(target=touch)
    thread.start()
    while not done.is_set():
        counted += 1
    thread.join()
    assert counted > 100
