"""A bandwidth limit: a token bucket over bytes."""

from __future__ import annotations

import time
from collections.abc import Callable


class RateLimit:
    """Lets ``bytes_per_s`` through on average, with bursts of at most ``burst_s`` seconds' worth.

    Args:
        bytes_per_s: the limit, above 0.
        burst_s: how much unused allowance is kept, in seconds.
        clock, sleep: seconds; passed in by tests.
    """

    def __init__(
        self,
        bytes_per_s: float,
        *,
        burst_s: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_s
        self._burst = burst_s
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def take(self, nbytes: int) -> None:
        """Wait until ``nbytes`` may pass. Never waits before the first bytes after a pause."""
        now = self._clock()
        self._free_at = max(self._free_at, now - self._burst)
        if self._free_at > now:
            self._sleep(self._free_at - now)
        self._free_at += nbytes / self._rate
