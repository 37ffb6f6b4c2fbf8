"""Ranks on this host, by torchrun's agent: how they ended, which processes they are, who is told what."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeppart.elastic.launching import (
    Assignment,
    LocalLauncher,
    RunResult,
    end_remaining_ranks,
    run_agent,
)
from deeppart.errors import LaunchError
from tests.ports import free_port
from tests.unit.elastic.handlers import handlers_kept

pytestmark = [pytest.mark.timeout(60), pytest.mark.xdist_group("torchrun")]


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    with handlers_kept():
        yield


def assignment(ranks: int) -> Assignment:
    return Assignment(uuid.uuid4().hex, ranks, 0, 1, f"localhost:{free_port()}", 5.0)


def ended(script: str, ranks: int = 2) -> RunResult:
    command = (sys.executable, "-I", "-S", "-c", f"import os, signal, time\n{script}")
    return run_agent(assignment(ranks), command, [signal.SIGTERM])


def test_the_rank_that_failed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run sets in the environment is not there in the next one, which may have one rank."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    done = ended(
        "if os.environ['RANK'] == '1': raise SystemExit(8 + int(os.environ['OMP_NUM_THREADS']))\ntime.sleep(30)"
    )
    assert done == RunResult(9, rank=1) and done.where == "rank 1"
    assert "OMP_NUM_THREADS" not in os.environ


def test_a_signal_to_the_agent_is_told() -> None:
    """The rank that sends it leaves."""
    done = ended("signal.signal(15, lambda *_: os._exit(143))\nos.kill(os.getppid(), 15)\ntime.sleep(30)", ranks=1)
    assert done == RunResult(143, by_signal=signal.SIGTERM)


def test_a_command_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    (tmp_path / "train").touch()
    for command in ("/nowhere/train", str(tmp_path), str(tmp_path / "train"), str(tmp_path / "train" / "a")):
        with pytest.raises(LaunchError) as caught:
            run_agent(assignment(1), (command,), [signal.SIGTERM])
        assert command in str(caught.value.found)


@pytest.mark.parametrize("script", ["trap 'exit 7' USR1", "trap '' USR1"])
def test_ranks_that_are_left_are_told_and_killed_in_the_end(script: str) -> None:
    waits = f"{script}; echo; while true; do sleep 0.05; done"
    env = {"TORCHELASTIC_RUN_ID": "left", "PATH": os.environ["PATH"]}
    rank = subprocess.Popen(["/bin/sh", "-c", waits], env=env, stdout=subprocess.PIPE)
    try:
        assert rank.stdout is not None and rank.stdout.readline()
        end_remaining_ranks("left", signal.SIGUSR1, 0.5 if "''" in script else 30.0)
        assert rank.wait(20) == (-signal.SIGKILL if "''" in script else 7)
    finally:
        rank.kill()
        rank.communicate()


def test_ranks_are_told_and_not_the_agent() -> None:
    """Before they run there is nobody to tell."""
    here = LocalLauncher((sys.executable, "-I", "-S", "-c", "import time; time.sleep(50)"), 5.0)
    assert not here.send(signal.SIGKILL) and here.nodes() == () and here.capacity() is None

    def kill() -> None:
        until = time.monotonic() + 40
        while not here.send(signal.SIGKILL) and time.monotonic() < until:
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    done = here.run(1)
    thread.join()
    assert done == RunResult(-signal.SIGKILL, rank=0)
