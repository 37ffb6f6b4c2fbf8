"""The agent of a node, as srun starts it: what it passes on, and what it ends with."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deeppart.elastic.launching import Assignment, RunResult
from deeppart.elastic.node_agent import FAILED, NO_COMMAND, NOT_MET, PORT_TAKEN, STOP_RANKS, exit_code
from tests.mpi.launchers import ROOT, environment
from tests.mpi.torchrun import interpreter
from tests.ports import free_port

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]


@pytest.fixture(scope="module")
def agent() -> Iterator[list[str]]:
    """The beginning of an agent's command, which need not import torch."""
    with interpreter(environment({}, 100.0), 2) as python:
        yield [*python, "-m", "deeppart.elastic.node_agent"]


@contextmanager
def pair(agent: list[str], script: str, grace_s: float = 60.0) -> Iterator[list[subprocess.Popen[str]]]:
    """Two nodes, with two ranks and one; their agents end with the block, and at that their ranks."""
    endpoint, nodes = f"localhost:{free_port()}", []
    rank = (sys.executable, "-I", "-S", "-c", f"import os, signal, sys, time\n{script}")
    for number, ranks in enumerate((2, 1)):
        command = [*agent, Assignment("run", ranks, number, 2, endpoint, grace_s).as_text(), *rank]
        env = environment({}, 100.0)
        nodes.append(subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True))
    try:
        yield nodes
    finally:
        for node in nodes:
            if node.poll() is None:
                node.terminate()
        for node in nodes:
            node.communicate(timeout=30)


def ended(command: list[str]) -> subprocess.CompletedProcess[str]:
    """An agent, to its end."""
    env = environment({}, 100.0)
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)


def test_two_nodes_with_uneven_ranks_are_told_and_leave(agent: list[str], tmp_path: Path) -> None:
    """Each agent tells its own ranks, and goes on until they have left; a rank that ignores it is killed in the end."""
    script = f"""
where = {str(tmp_path)!r} + "/" + "-".join(os.environ[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
signal.signal(signal.SIGUSR1, signal.SIG_IGN if os.environ["RANK"] == "2" else lambda *_: sys.exit(143))
open(where, "w").close()
time.sleep(100)
"""
    with pair(agent, script, grace_s=1.0) as nodes:
        until = time.monotonic() + 110
        while len(list(tmp_path.iterdir())) < 3 and time.monotonic() < until:
            time.sleep(0.05)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0-3-0", "1-3-1", "2-3-0"]
        for node in nodes:
            node.send_signal(signal.SIGUSR1)
        said = [node.communicate(timeout=60)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [143, FAILED], said
    assert "elastic-run: rank 2 on " in said[1] and "killed by SIGKILL" in said[1]


def test_ranks_alone_are_told_and_once(agent: list[str], tmp_path: Path) -> None:
    """By a signal that comes several times, and does nothing to others: it may go to all processes of a step."""
    script = f"""
where = {str(tmp_path)!r} + "/"
signal.signal(signal.SIGTERM, lambda *_: open(where + "told", "a").write("x") and None)
open(where + os.environ["RANK"], "w").close()
while not os.path.exists(where + "over"): time.sleep(0.05)
sys.exit(143)
"""
    with pair(agent, script) as nodes:
        until = time.monotonic() + 110
        while len(list(tmp_path.iterdir())) < 3 and time.monotonic() < until:
            time.sleep(0.05)
        for _ in range(3):
            for node in nodes:
                node.send_signal(STOP_RANKS)
            time.sleep(0.3)
        told = (tmp_path / "told").read_text()  # once one has ended, torchrun's agent tells the others of its node
        (tmp_path / "over").touch()
        said = [node.communicate(timeout=60)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [143, 143], said
    assert told == "xxx"


@pytest.mark.parametrize("node", [0, 1])
def test_an_agent_that_has_waited_for_the_others_has_not_failed(agent: list[str], node: int) -> None:
    """Neither the one that they meet at, nor one that comes there."""
    done = ended([*agent, Assignment("run", 1, node, 2, f"localhost:{free_port()}", 5.0, meet_s=2).as_text(), "true"])
    assert done.returncode == NOT_MET, done.stderr
    assert "elastic-run: " in done.stderr and "has waited at localhost:" in done.stderr


def alone(endpoint: str) -> str:
    """What the agent of one node of one is to do."""
    return Assignment("run", 1, 0, 1, endpoint, 5.0).as_text()


def test_a_command_that_is_none_is_said_in_a_line() -> None:
    """Of a real process of its own."""
    agent = [sys.executable, "-m", "deeppart.elastic.node_agent"]
    done = ended([*agent, alone(f"localhost:{free_port()}"), "/nowhere/train"])
    assert done.returncode == NO_COMMAND
    assert "elastic-run: the command of the ranks cannot be started on " in done.stderr
    assert "/nowhere/train" in done.stderr and "Traceback" not in done.stderr


def test_a_port_that_somebody_else_has_is_told_from_a_node_that_fails(agent: list[str]) -> None:
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as other:
        done = ended([*agent, alone(f"localhost:{other.getsockname()[1]}"), "true"])
    assert done.returncode == PORT_TAKEN, done.stderr
    assert "the port is in use" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (RunResult(0), 0),
        (RunResult(143, rank=1), 143),
        (RunResult(-signal.SIGTERM, rank=0), 143),
        (RunResult(-signal.SIGUSR1, rank=0), 143),
        (RunResult(1, rank=0), FAILED),
        (RunResult(-signal.SIGKILL, rank=0), FAILED),
        (RunResult(143, by_signal=signal.SIGINT), 130),
    ],
)
def test_codes_tell_ranks_from_nodes(result: RunResult, code: int) -> None:
    assert exit_code(result) == code
