"""Ranks on this host, which are told while they run. More of it: test_running.py."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from deeppart.elastic.agent import Ended
from deeppart.elastic.launching import OnThisHost
from tests.unit.elastic.handlers import handlers_kept

pytestmark = [pytest.mark.timeout(60), pytest.mark.xdist_group("torchrun")]


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    with handlers_kept():
        yield


def test_ranks_are_told_and_not_the_agent() -> None:
    """Before they run there is nobody to tell."""
    here = OnThisHost((sys.executable, "-I", "-S", "-c", "import time; time.sleep(50)"), 5.0)
    assert not here.send(signal.SIGKILL) and here.nodes() == () and here.room() is None

    def kill() -> None:
        until = time.monotonic() + 40
        while not here.send(signal.SIGKILL) and time.monotonic() < until:
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    done = here.run(1)
    thread.join()
    assert done == Ended(-signal.SIGKILL, rank=0)
