"""Ranks on this host, which are told while they run. More of it: test_running.py."""

from __future__ import annotations

import errno
import gc
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from torch.distributed import DistNetworkError, TCPStore
from torch.distributed.elastic.multiprocessing.api import SignalException

from deeppart.elastic import launching
from deeppart.elastic.agent import Ended, ranks_of
from deeppart.elastic.launching import OnThisHost, ended_by_signals
from deeppart.errors import LaunchError
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
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_ranks_are_told_that_were_started_when_a_signal_came_in_between(tmp_path: Path, number: signal.Signals) -> None:
    """The agent knows none of them then: it would end, and they would go on. They may listen to that signal alone.

    Some are told before they have said that they began, and say both then. They write that themselves: their children
    are told, too.
    """
    script = f"""
trap ': > {tmp_path}/began-$RANK; : > {tmp_path}/left-$RANK; exit 143' {number.name[3:]}
: > {tmp_path}/began-$RANK
if [ $RANK = 0 ]; then kill -{number.name[3:]} $PPID; fi
while true; do sleep 0.05; done
"""
    here = OnThisHost(("/bin/sh", "-c", script), 20.0)
    with ended_by_signals():
        assert here.run(16) == Ended(143, told=number)
    assert not ranks_of(here._run_id)
    assert {path.name[5:] for path in tmp_path.glob("left-*")} == {path.name[6:] for path in tmp_path.glob("began-*")}
    gc.collect()  # those processes are warned of here, and not in another test


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


#: Ranks tell each other where they are.
MEETING = """
import os, sys, torch.distributed as dist
dist.init_process_group("gloo")
found = [None] * dist.get_world_size()
dist.all_gather_object(found, os.environ["RANK"])
print(*found, os.environ["MASTER_PORT"], file=open(sys.argv[1] + os.environ["RANK"], "a"))
dist.destroy_process_group()
"""


def test_runs_one_after_the_other_do_not_meet_each_other(tmp_path: Path) -> None:
    here = OnThisHost((sys.executable, "-c", MEETING, str(tmp_path / "met-")), 5.0)
    assert [here.run(2), here.run(3)] == [Ended(0), Ended(0)]
    first, second = (tmp_path / "met-0").read_text().splitlines()
    assert first.split()[:-1] == ["0", "1"] and second.split()[:-1] == ["0", "1", "2"]
    assert first.split()[-1] != second.split()[-1]


def test_a_port_that_torch_would_not_share_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that an earlier store of this process had; here, the first one that the operating system gives."""
    given, refused = list[int](), list[int]()

    def store(host: str, port: int, **options: Any) -> TCPStore:
        if port and port == given[0]:
            refused.append(port)
            raise DistNetworkError("address already in use")
        made = TCPStore(host, port, **options)
        given.append(made.port)
        return made

    monkeypatch.setattr(launching, "TCPStore", store)
    found = launching._store()
    assert refused == given[:1] and found.port == given[1] != given[0]


def test_a_host_that_has_no_room_is_not_a_command_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/torchelastic")

    monkeypatch.setattr(launching, "run_agent", refuse)
    with pytest.raises(LaunchError, match="on this host") as caught:
        OnThisHost(("true",), 5.0).run(1)
    assert "No space left" in str(caught.value.found) and "program" not in str(caught.value)
