"""Fresh memory: zeroed, its own, and not there before it is used."""

from __future__ import annotations

import numpy as np

from deeppart._pages import fresh_pages
from tests.unit.smaps import smaps_bytes

LENGTH = 64 << 20


def test_it_is_zeroed_and_writable_and_takes_no_memory_before() -> None:
    pages = np.frombuffer(fresh_pages(LENGTH), dtype=np.uint8)
    assert len(pages) == LENGTH and smaps_bytes(int(pages.ctypes.data), "Rss") < LENGTH / 2
    assert not pages.any()
    pages[:] = 1
    assert smaps_bytes(int(pages.ctypes.data), "Rss") >= LENGTH
