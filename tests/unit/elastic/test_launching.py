"""Ranks on this host, which are told while they run. More of it: test_running.py."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException

from deeppart.elastic.agent import Ended, ranks_of
from deeppart.elastic.launching import OnThisHost, ended_by_signals
from tests.unit.elastic.handlers import NUMBERS, handlers_kept

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


# Processes of which the agent has forgotten that it has started them.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ranks_are_told_that_were_started_when_a_signal_came_in_between(tmp_path: Path) -> None:
    """The agent knows none of them then: it would end, and they would go on."""
    script = f"""
trap 'touch {tmp_path}/left-$RANK; exit 143' TERM
touch {tmp_path}/began-$RANK
if [ $RANK = 0 ]; then kill -TERM $PPID; fi
while true; do sleep 0.05; done
"""
    here = OnThisHost(("/bin/sh", "-c", script), 20.0)
    with ended_by_signals():
        assert here.run(16) == Ended(143, told=signal.SIGTERM)
    assert not ranks_of(here._run_id)
    assert {path.name[5:] for path in tmp_path.glob("left-*")} == {path.name[6:] for path in tmp_path.glob("began-*")}


def test_signals_that_are_ignored_stay_so() -> None:
    """SIGHUP, under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    before = [signal.getsignal(number) for number in NUMBERS]
    with ended_by_signals():
        signal.raise_signal(signal.SIGHUP)
        with pytest.raises(SignalException):
            signal.raise_signal(signal.SIGTERM)
        done = OnThisHost(("/bin/sh", "-c", "kill -HUP $PPID $$; exit 7"), 5.0).run(1)
    assert done == Ended(7, rank=0) and [signal.getsignal(number) for number in NUMBERS] == before


def test_all_runs_of_a_process_meet_at_one_port(tmp_path: Path) -> None:
    """Torch does not share a store at a port that an earlier one had, which the agent would find taken."""
    script = "import os, sys; print(os.environ['MASTER_PORT'], file=open(sys.argv[1], 'a'))"
    here = OnThisHost((sys.executable, "-I", "-S", "-c", script, str(tmp_path / "ports")), 5.0)
    assert [here.run(1), here.run(2)] == [Ended(0), Ended(0)]
    ports = (tmp_path / "ports").read_text().split()
    assert len(ports) == 3 and len(set(ports)) == 1
