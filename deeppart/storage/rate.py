"""A bandwidth limit: a token bucket over bytes. Thread-safe."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from deeppart.plan.limit import BURST_S


class RateLimit:
    """Lets ``bytes_per_s`` through on average, with bursts of at most ``burst_s`` seconds' worth."""

    def __init__(
        self,
        bytes_per_s: float,
        *,
        burst_s: float = BURST_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_s
        self._burst = burst_s
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> None:
        """Wait until ``nbytes`` may pass. The first bytes after a pause never wait."""
        delay_s = self.reserve(nbytes)
        if delay_s > 0:
            self._sleep(delay_s)

    def reserve(self, nbytes: int) -> float:
        """Reserve ``nbytes`` for a caller that waits by itself. Returns the seconds until they may pass, at least 0."""
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now - self._burst)
            delay_s = max(0.0, self._free_at - now)
            self._free_at += nbytes / self._rate
        return delay_s
