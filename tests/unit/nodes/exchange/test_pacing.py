"""Waiting for a bandwidth limit: as long as it takes, and nobody takes it for waiting for another rank."""

from __future__ import annotations

import time

from deeppart.nodes.exchange.memory import paced
from deeppart.storage.rate import RateLimit


def test_without_a_limit_or_bytes_nothing_is_waited_for() -> None:
    assert list(paced(None, 1 << 40)) == [] and list(paced(RateLimit(1.0), 0)) == []


def test_it_waits_for_the_limit_and_says_at_the_end_that_it_got_further() -> None:
    limit = RateLimit(1_000_000.0, burst_s=0.0)
    limit.take(200_000)  # what follows has to wait 0.2 s
    began = time.monotonic()
    moved = list(paced(limit, 1000))
    assert time.monotonic() - began >= 0.15
    assert moved[-1] is True and len(moved) > 1 and not any(moved[:-1])
