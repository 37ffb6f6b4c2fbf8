"""Fixtures of the tests of signals: whoever listens puts back what was there."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from deeppart.stopping import Signals

BOTH = (signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def handlers_stay() -> Iterator[None]:
    """Tests begin without handlers: ``should_stop()`` of a test before may listen for as long as the process lives."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in BOTH}
    yield
    after = [signal.signal(number, handler) for number, handler in before.items()]
    assert after == [signal.SIG_DFL] * len(BOTH)


@pytest.fixture
def signals() -> Iterator[Signals]:
    made = Signals(BOTH)
    made.listen()
    yield made
    made.put_back()
