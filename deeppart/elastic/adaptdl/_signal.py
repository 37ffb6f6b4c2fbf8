"""Whether this replica has been told to end, by SIGTERM or SIGUSR1. Ctrl-C interrupts, as everywhere in Python."""

from __future__ import annotations

import signal
import threading

from deeppart.stopping.notices import Signals

_signals = Signals((signal.SIGTERM, signal.SIGUSR1))


def listen() -> None:
    """Note signals from now on, in the main thread; elsewhere, and a second time, nothing happens."""
    if threading.current_thread() is threading.main_thread():
        _signals.listen()


def get_exit_flag() -> bool:
    """True if there has been such a signal."""
    return _signals.received is not None
