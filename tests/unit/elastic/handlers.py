"""Signal handlers that code under test leaves behind: torchrun's agent puts none back."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Those that were there before are there afterwards."""
    before = [signal.getsignal(number) for number in NUMBERS]
    try:
        yield
    finally:
        for number, handler in zip(NUMBERS, before, strict=True):
            signal.signal(number, handler)
