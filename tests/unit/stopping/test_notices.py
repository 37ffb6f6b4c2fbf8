"""What a process hears."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from deeppart.errors import ConfigError
from deeppart.stopping import Signals, WatchedFile

BOTH = (signal.SIGTERM, signal.SIGUSR1)


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_is_noted(signals: Signals, number: signal.Signals) -> None:
    assert signals.received is None
    signal.raise_signal(number)
    assert signals.received is number


def test_a_handler_that_was_there_is_called_and_put_back() -> None:
    calls = list[int]()

    def mine(number: int, _frame: object) -> None:
        calls.append(number)

    before = signal.signal(signal.SIGUSR1, mine)
    try:
        signals = Signals([signal.SIGUSR1])
        signals.listen()
        signals.listen()
        signal.raise_signal(signal.SIGUSR1)
        assert signals.received is signal.SIGUSR1 and calls == [signal.SIGUSR1]
        signals.put_back()
        assert signal.getsignal(signal.SIGUSR1) is mine
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_came_later_stays() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    signals = Signals([signal.SIGUSR1])
    signals.listen()
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signals.put_back()
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, 0, 9999])
def test_signals_that_nobody_can_note_are_named(number: signal.Signals) -> None:
    with pytest.raises(ConfigError, match="cannot note this signal"):
        Signals([signal.SIGTERM, number])


def test_other_threads_are_refused() -> None:
    found = list[str]()

    def listen() -> None:
        with pytest.raises(ConfigError) as caught:
            Signals(BOTH).listen()
        found.append(str(caught.value))
        Signals(()).listen()
        found.append("with a file only")

    thread = threading.Thread(target=listen, name="trainer")
    thread.start()
    thread.join(10)
    assert "SIGTERM, SIGUSR1" in found[0] and "'trainer'" in found[0] and found[1] == "with a file only"


def test_a_file_is_noted_when_it_is_made_or_touched(tmp_path: Path) -> None:
    path = tmp_path / "STOP"
    made = WatchedFile(path, every_s=0.0)
    assert not made.changed()
    path.touch()
    assert made.changed()
    again = WatchedFile(path, every_s=0.0)
    assert not again.changed(), "an earlier job was told by it"
    os.utime(path, ns=(1, 1))
    assert again.changed()
    path.unlink()
    assert again.changed() and not WatchedFile(path, every_s=0.0).changed()


def test_a_file_that_cannot_be_looked_at_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not WatchedFile(tmp_path / "file" / "STOP", every_s=0.0).changed()
    assert not WatchedFile(None).changed()
