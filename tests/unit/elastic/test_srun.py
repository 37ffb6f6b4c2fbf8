"""Ranks over the nodes of an allocation; a Slurm that does not answer. With Slurm: tests/slurm/test_elastic_run.py."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from deeppart.config import Allocation
from deeppart.elastic import srun
from deeppart.elastic.launching import RunResult
from deeppart.elastic.node_agent import NO_COMMAND, PORT_TAKEN
from deeppart.elastic.srun import SrunLauncher, divide_ranks
from deeppart.errors import LaunchError

#: Of two nodes. `srun` ends as the file of its run and node says, or at once; what it was started with is kept.
SLURM = {
    "scontrol": "printf 'node1\\nnode2\\n'",
    "squeue": 'case "$*" in *--steps*) cat steps;; *) echo "7 node[1-2]";; esac',
    "sinfo": "echo host",
    "scancel": 'echo "$*" >>cancelled; touch over',
    "srun": """
for word in "$@"; do case "$word" in --nodelist=*) node=${word#--nodelist=};; esac; done
echo "$@" >>started.$node
exec bash -c "$(cat does.$(wc -l <started.$node).$node 2>/dev/null)"
""",
}


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Commands of a Slurm that is none, in the directory in which they run."""
    (tmp_path / "bin").mkdir()
    for name, script in SLURM.items():
        command(tmp_path, name, script)
    (tmp_path / "steps").touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(directory: Path, name: str, script: str) -> None:
    (directory / "bin" / name).write_text(f"#!/bin/bash\n{script}\n")
    (directory / "bin" / name).chmod(0o755)


def does(directory: Path, run: int, **nodes: str) -> None:
    """What srun does for these nodes in a run."""
    for node, script in nodes.items():
        (directory / f"does.{run}.{node}").write_text(script)


def knows_steps(directory: Path) -> None:
    """Slurm tells of steps once they have been started."""
    named = 'for w in "$@"; do case "$w" in --job-name=*) echo "7.$node ${w#--job-name=}" >>steps;; esac; done\nexec'
    command(directory, "srun", SLURM["srun"].replace("exec", named))


def launcher(grace_s: float = 5.0) -> SrunLauncher:
    return SrunLauncher(("train",), grace_s, Allocation("7", "node[1-2]"), 2)


@pytest.mark.parametrize("nodes", [1, 2, 3, 7])
@pytest.mark.parametrize("ranks", [1, 2, 5, 21])
def test_ranks_are_spread_evenly(ranks: int, nodes: int) -> None:
    shares = divide_ranks(ranks, nodes)
    assert sum(shares) == ranks and len(shares) == min(ranks, nodes)
    assert shares == sorted(shares, reverse=True) and max(shares) - min(shares) <= 1


def test_a_slurm_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError) as caught:
        SrunLauncher(("true",), 5.0, Allocation("7", "node[1-2]"), 2)
    assert caught.value.tried == "scontrol show hostnames node[1-2]" and "scontrol" in str(caught.value.found)


def test_a_command_that_is_none_ends_the_job_and_loses_no_node(slurm: Path) -> None:
    does(slurm, 1, node2=f"exit {NO_COMMAND}")
    agents = launcher()
    with pytest.raises(LaunchError) as caught:
        agents.run(2)
    assert "cannot be started" in str(caught.value) and (caught.value.found, caught.value.where) == ("train", "node2")
    assert agents.nodes() == ("node1", "node2") and not (slurm / "does.2.node2").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_agents_that_a_signal_ends_were_told(slurm: Path, number: signal.Signals) -> None:
    """While they import torch, say: their nodes are not lost, and the job is to end."""
    does(slurm, 1, node1=f"exit {128 + number}", node2=f"exit {128 + number}")
    agents = launcher()
    assert agents.run(2).code == 143 and agents.nodes() == ("node1", "node2")


def test_an_agent_that_was_killed_loses_its_node(slurm: Path) -> None:
    does(slurm, 1, node2=f"exit {128 + signal.SIGKILL}")
    agents = launcher()
    assert agents.run(2) == RunResult(137, node="node2") and agents.nodes() == ("node1",)


def test_a_port_that_is_taken_is_another_one_next(slurm: Path) -> None:
    """Whatever the others say, who find somebody else there."""
    does(slurm, 1, node1=f"exit {PORT_TAKEN}", node2="exit 1")
    agents = launcher()
    assert agents.run(2) == RunResult(0) and agents.nodes() == ("node1", "node2")
    ports = {
        line.split('"endpoint": "host:')[1].split('"')[0] for line in (slurm / "started.node2").read_text().splitlines()
    }
    assert len(ports) == 2


def test_ports_that_are_all_taken_are_a_failure(slurm: Path) -> None:
    for run in range(1, 10):
        does(slurm, run, node1=f"exit {PORT_TAKEN}")
    assert launcher().run(2) == RunResult(PORT_TAKEN, node="node1")
    assert len((slurm / "started.node1").read_text().splitlines()) == 5


def test_a_step_that_slurm_does_not_give_is_asked_for_again(slurm: Path) -> None:
    """Its controller starts again, say: no node is lost by it, unless it goes on so."""
    does(slurm, 1, node1="exit $SLURM_EXIT_ERROR", node2="exit $SLURM_EXIT_ERROR")
    agents = launcher()
    assert agents.run(2) == RunResult(0) and agents.nodes() == ("node1", "node2")
    for run in range(3, 10):
        does(slurm, run, node2="exit $SLURM_EXIT_ERROR")
    assert agents.run(2) == RunResult(srun._NO_STEP, node="node2") and agents.nodes() == ("node1",)
    assert len((slurm / "started.node2").read_text().splitlines()) == 2 + 5


def test_ranks_have_the_environment_of_the_job(slurm: Path) -> None:
    """Not what --export=NONE of the job leaves of it."""
    launcher().run(1)
    assert " --export=ALL " in (slurm / "started.node1").read_text()


def test_a_slurm_that_does_not_answer_leaves_no_step_behind(slurm: Path) -> None:
    does(slurm, 1, node1="exit 0", node2="while [ ! -e over ]; do sleep 0.05; done; exit 137")
    command(slurm, "squeue", 'case "$*" in *--steps*) cat steps;; *) [ -e over ] || { [ -e first ] && exit 1; };'
            ' touch first; echo "7 node[1-2]";; esac')  # fmt: skip
    agents = launcher()
    (slurm / "steps").write_text("")
    knows_steps(slurm)
    with pytest.raises(LaunchError, match="Slurm does not answer"):
        agents.run(2)
    assert "--signal=KILL" in (slurm / "cancelled").read_text()
