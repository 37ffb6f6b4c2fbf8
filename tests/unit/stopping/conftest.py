"""Fixtures of the tests of signals: whoever listens puts back what was there."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from deeppart.stopping import Signals

BOTH = (signal.SIGTERM, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def handlers_stay() -> Iterator[None]:
    before = [signal.getsignal(number) for number in BOTH]
    yield
    assert [signal.getsignal(number) for number in BOTH] == before


@pytest.fixture
def signals() -> Iterator[Signals]:
    made = Signals(BOTH)
    made.listen()
    yield made
    made.put_back()
