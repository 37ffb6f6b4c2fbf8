"""Waiting in a test for what happens elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], seconds: float = 200.0) -> None:
    """Wait for a condition; if it does not come true in time, the test fails."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"after {seconds:g} s it is not so"
        time.sleep(0.001)
