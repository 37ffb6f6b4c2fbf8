"""Waiting for a bandwidth limit inside an operation."""

from __future__ import annotations

import time

from deeppart.comm.base import Operation
from deeppart.storage.rate import RateLimit


def paced(limit: RateLimit | None, nbytes: int) -> Operation[None]:
    """Wait until ``nbytes`` may leave this node."""
    delay_s = limit.reserve(nbytes) if limit is not None and nbytes else 0.0
    if delay_s <= 0:
        return
    until = time.monotonic() + delay_s
    while time.monotonic() < until:
        yield False
    yield True  # a wait of our own: nobody was waited for
