"""SIGTERM, noted. Ranks that agree: tests/elastic/test_told.py."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from deeppart.interop.stop_signal import StopSignal


@pytest.fixture
def stop() -> Iterator[StopSignal]:
    before = signal.getsignal(signal.SIGTERM)
    made = StopSignal()
    made.listen()
    made.listen()  # a second time changes nothing
    yield made
    made.end()
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_signal_is_noted_and_then_left_to_whoever_had_it(stop: StopSignal) -> None:
    assert not stop.told()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.told()


def test_whoever_had_it_hears_nothing_meanwhile() -> None:
    """A trainer's own handler would end the training before its checkpoint."""
    heard = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        stop = StopSignal()
        stop.listen()
        signal.raise_signal(signal.SIGTERM)
        assert stop.told() and not heard
        stop.end()
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_another_thread_it_is_not_noticed() -> None:
    found = list[bool]()

    def listen() -> None:
        stop = StopSignal()
        stop.listen()
        found.append(stop.told())
        stop.end()

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=listen)
    thread.start()
    thread.join(10)
    assert found == [False] and signal.getsignal(signal.SIGTERM) == before


@pytest.mark.usefixtures("stop")
def test_children_that_are_forked_end_by_it() -> None:
    """As ``Process.terminate()`` and pools expect it. (Workers of a DataLoader get a handler of torch's own.)"""
    child = multiprocessing.get_context("fork").Process(target=wait_long)
    child.start()
    child.terminate()
    child.join(10)
    ended = child.exitcode
    child.kill()
    child.join(10)
    assert ended == -signal.SIGTERM


def wait_long() -> None:
    for _ in range(3000):  # a handler runs between two of them, and comes back
        time.sleep(0.01)
