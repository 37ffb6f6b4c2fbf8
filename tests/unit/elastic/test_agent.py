"""torchrun's agent in this process: how ranks ended, and which processes they are."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from torch.distributed.elastic.multiprocessing.api import PContext

from deeppart.elastic import agent
from deeppart.elastic.agent import Ended, end_those_left, name_code, ranks_of, run_agent
from deeppart.errors import LaunchError
from tests.unit.elastic.handlers import handlers_kept

pytestmark = [pytest.mark.timeout(60), pytest.mark.xdist_group("torchrun")]


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    with handlers_kept():
        yield


def ended(script: str, ranks: int = 2) -> Ended:
    how = {"min_nodes": 1, "max_nodes": 1, "run_id": uuid.uuid4().hex, "signals_to_handle": "SIGTERM"}
    command = (sys.executable, "-I", "-S", "-c", f"import os, signal, time\n{script}")
    return run_agent(ranks, command, 5.0, rdzv_backend="c10d", rdzv_endpoint="localhost:0", **how)


def test_the_rank_that_failed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run sets in the environment is not there in the next one, which may have one rank."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    done = ended(
        "if os.environ['RANK'] == '1': raise SystemExit(8 + int(os.environ['OMP_NUM_THREADS']))\ntime.sleep(30)"
    )
    assert done == Ended(9, rank=1) and done.where == "rank 1"
    assert "OMP_NUM_THREADS" not in os.environ


def test_a_signal_to_the_agent_is_told() -> None:
    """The rank that sends it leaves."""
    done = ended("signal.signal(15, lambda *_: os._exit(143))\nos.kill(os.getppid(), 15)\ntime.sleep(30)", ranks=1)
    assert done == Ended(143, told=signal.SIGTERM)


#: One rank ends at once, the other one takes its time when it is told so.
OTHERS = """
def saves(*_):
    signal.signal(15, signal.SIG_IGN)
    time.sleep(3)
    open(where, "w").close()
    os._exit(143)
if os.environ["RANK"] == "0":
    signal.signal(15, saves)
    open(where + "-began", "w").close()
else:
    while not os.path.exists(where + "-began"): time.sleep(0.01)
    os._exit(code)
time.sleep(30)
"""


@pytest.mark.parametrize("code", [143, 7])
def test_a_rank_may_make_the_checkpoint_when_others_have_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """For as long as it is given; those of a rank that has failed have the agent's time, which is short."""
    monkeypatch.setattr(PContext.close, "__defaults__", (None, 1))
    assert ended(f"where, code = {str(tmp_path / 'saved')!r}, {code}\n{OTHERS}") == Ended(code, rank=1)
    assert (tmp_path / "saved").exists() == (code == 143)


def test_ranks_are_those_of_the_run() -> None:
    """A child of this process without the run's number is not told."""
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE)
    other = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE, env={"TORCHELASTIC_RUN_ID": "mine"}
    )
    try:
        until = time.monotonic() + 20
        while not ranks_of("mine") and time.monotonic() < until:  # until it has the environment of its program
            time.sleep(0.01)
        assert ranks_of("mine") == [other.pid] and ranks_of("min") == []
    finally:
        for each in (child, other):
            each.communicate(b"\n", timeout=20)


#: What setproctitle does to the environment, as others see it.
TITLED = """
import ctypes
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
start, end = int(fields[47]), int(fields[48])
ctypes.memset(start, 0, end - start)
print(flush=True)
input()
"""


def test_ranks_that_give_themselves_a_title_are_told() -> None:
    """It is written over their environment. They would never be told of a change."""
    rank = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", TITLED],
        env={"TORCHELASTIC_RUN_ID": "titled"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert rank.stdout is not None and rank.stdout.readline()
        assert ranks_of("titled") == [rank.pid]
    finally:
        rank.communicate(b"\n", timeout=20)
    assert ranks_of("titled") == []


def refused_by(monkeypatch: pytest.MonkeyPatch, error: OSError) -> type[Exception]:
    """What is raised when the operating system refuses so."""

    def refuse(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(agent, "elastic_launch", lambda *_: refuse)
    with pytest.raises((LaunchError, OSError)) as caught:
        run_agent(1, ("train",), 5.0, min_nodes=1, max_nodes=1)
    return caught.type


def test_a_command_that_is_none_is_told_from_a_node_that_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.E2BIG):
        assert refused_by(monkeypatch, OSError(number, "no", "train")) is LaunchError
    for other in (OSError(errno.ENOSPC, "no", "/tmp/torchelastic"), OSError(errno.EIO, "no", "train")):
        assert refused_by(monkeypatch, other) is OSError
    assert refused_by(monkeypatch, OSError(errno.EAGAIN, "no")) is BlockingIOError
    assert refused_by(monkeypatch, OSError(errno.ENOENT, "No usable temporary directory")) is FileNotFoundError


def test_a_command_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    (tmp_path / "train").touch()
    for command in ("/nowhere/train", str(tmp_path), str(tmp_path / "train"), str(tmp_path / "train" / "a")):
        with pytest.raises(LaunchError) as caught:
            how = {"min_nodes": 1, "max_nodes": 1, "run_id": "none", "signals_to_handle": "SIGTERM"}
            run_agent(1, (command,), 5.0, rdzv_backend="c10d", rdzv_endpoint="localhost:0", **how)
        assert command in str(caught.value.found)


@pytest.mark.parametrize("script", ["trap 'exit 7' USR1", "trap '' USR1"])
def test_ranks_that_are_left_are_told_and_killed_in_the_end(script: str) -> None:
    waits = f"{script}; echo; while true; do sleep 0.05; done"
    env = {"TORCHELASTIC_RUN_ID": "left", "PATH": os.environ["PATH"]}
    rank = subprocess.Popen(["/bin/sh", "-c", waits], env=env, stdout=subprocess.PIPE)
    try:
        assert rank.stdout is not None and rank.stdout.readline()
        end_those_left("left", signal.SIGUSR1, 0.5 if "''" in script else 30.0)
        assert rank.wait(20) == (-signal.SIGKILL if "''" in script else 7)
    finally:
        rank.kill()
        rank.communicate()


def test_codes_have_names() -> None:
    assert name_code(-9) == "killed by SIGKILL" and name_code(3) == "exit code 3"
    assert name_code(-40) == "killed by signal 40"
    assert name_code(143) == "exit code 143 (told to end)"
