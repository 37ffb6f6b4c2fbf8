"""Private memory, allocated from the system."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

#: Size of a huge page, on machines that have them.
_HUGE_PAGE_BYTES = 2 << 20


def fresh_pages(nbytes: int) -> mmap.mmap:
    """Zeroed memory, on huge pages if the system provides any: far fewer page faults, and longer requests to a
    device. Pages are populated on first use.

    Private: shared anonymous memory gets no huge pages and counts as another kind of memory.
    """
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # not supported by the kernel
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def block_memory(nbytes: int) -> memoryview:
    """Zeroed private memory, aligned for direct writes; on huge pages if the system provides any."""
    pages = fresh_pages(nbytes + _HUGE_PAGE_BYTES)
    first = -int(np.frombuffer(pages, dtype=np.uint8).ctypes.data) % _HUGE_PAGE_BYTES
    return memoryview(pages)[first : first + nbytes]
