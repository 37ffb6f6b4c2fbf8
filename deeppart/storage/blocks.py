"""Memory that is written to storage around the page cache, or read into from there.

A direct write hands the device the pages that the bytes lie in. On pages of 4 KiB that is a long list of short pieces,
and the device gets as many requests as its list is too short for; on huge pages it is a few long ones, which took 0.6 s
per GiB beside 0.8 s (docs/benchmarks.md, "Until persistent").
"""

from __future__ import annotations

import numpy as np

from deeppart._pages import fresh_pages

#: Of a huge page, on the machines that have them; the block lies at a multiple of it.
_HUGE_PAGE_BYTES = 2 << 20


def block_memory(nbytes: int) -> memoryview:
    """Zeroed memory of its own, aligned for direct writes; on huge pages where the system gives any."""
    pages = fresh_pages(nbytes + _HUGE_PAGE_BYTES)
    first = -int(np.frombuffer(pages, dtype=np.uint8).ctypes.data) % _HUGE_PAGE_BYTES
    return memoryview(pages)[first : first + nbytes]
