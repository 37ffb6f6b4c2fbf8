"""SIGTERM, noted."""

from __future__ import annotations

import os
import signal

from deeppart.interop.stop_signal import StopSignal


def test_the_signal_is_noted_and_then_left_to_whoever_had_it() -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop = StopSignal()
    stop.listen()
    try:
        stop.listen()  # a second time changes nothing
        assert not stop.told()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.told()
    finally:
        stop.end()
    assert signal.getsignal(signal.SIGTERM) == before
