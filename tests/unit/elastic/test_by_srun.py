"""Ranks over the nodes of an allocation; a Slurm that does not answer. With Slurm: tests/slurm/test_elastic_run.py."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from deeppart.config import Allocation
from deeppart.elastic import by_srun
from deeppart.elastic.by_srun import SrunLauncher, divide_ranks
from deeppart.elastic.launching import RunResult
from deeppart.elastic.node_agent import FAILED, NO_COMMAND, NOT_MET, PORT_TAKEN
from deeppart.errors import LaunchError
from tests.unit.elastic.handlers import handlers_kept

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


def told_once_there(agents: SrunLauncher, number: signal.Signals, patience: float = 20.0) -> threading.Thread:
    """By another thread, as :mod:`deeppart.elastic.running` does."""

    def tell() -> None:
        until = time.monotonic() + patience
        while not agents.send(number) and time.monotonic() < until:
            time.sleep(0.02)

    thread = threading.Thread(target=tell)
    thread.start()
    return thread


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
    assert agents.run(2) == RunResult(by_srun._NO_STEP, node="node2") and agents.nodes() == ("node1",)
    assert len((slurm / "started.node2").read_text().splitlines()) == 2 + 5


def test_ranks_have_the_environment_of_the_job(slurm: Path) -> None:
    """Not what --export=NONE of the job leaves of it."""
    launcher().run(1)
    assert " --export=ALL " in (slurm / "started.node1").read_text()


@pytest.mark.parametrize("name", ["SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET", "SLURM_NTASKS_PER_GPU"])
def test_gpus_that_no_step_gets_are_refused(slurm: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "4")
    with pytest.raises(LaunchError) as caught:
        launcher()
    assert caught.value.found == f"{name}=4" and "--gpus-per-node=N" in str(caught.value.expected)


def test_one_node_has_all_gpus_of_the_job(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command(slurm, "scontrol", "echo node1")
    monkeypatch.setenv("SLURM_GPUS", "4")
    assert launcher().room() == 2


def test_a_slurm_that_is_busy_is_asked_again(slurm: Path) -> None:
    """Training that is done is not a failure because the controller starts again just then."""
    busy = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
    command(slurm, "squeue", f"echo >>asked; [ $(wc -l <asked) = 2 ] && {{ {busy}; }}; echo '7 node[1-2]'")
    assert launcher().run(2) == RunResult(0)
    assert len((slurm / "asked").read_text()) >= 4


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


def test_a_signal_that_is_ignored_stays_so(slurm: Path) -> None:
    """SIGHUP under nohup, in a shell of salloc."""
    does(slurm, 1, node1="kill -HUP $PPID; sleep 0.3")
    with handlers_kept():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert launcher().run(1) == RunResult(0)


def test_ranks_are_told_again_until_they_have_ended(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that imports torch, or has not been started, does not hear the first time."""
    monkeypatch.setattr(by_srun, "_TELL_EVERY_S", 0.1)
    knows_steps(slurm)
    three = "while [ $(cat cancelled 2>/dev/null | wc -l) -lt 3 ]; do sleep 0.05; done; exit 143"
    does(slurm, 1, node1="exit 70", node2=three)
    assert launcher().run(2) == RunResult(70, node="node1")
    assert all(line.startswith("--signal=URG ") for line in (slurm / "cancelled").read_text().splitlines())


def test_a_wait_for_a_busy_slurm_ends(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_srun, "_AGAIN_S", 0.0)
    command(slurm, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(LaunchError) as caught:
        launcher().nodes()
    assert caught.value.found == "Unable to contact slurm controller"


def test_nodes_are_those_of_one_job_of_an_array(slurm: Path) -> None:
    """Slurm takes the number of one of them for that of the array."""
    command(slurm, "squeue", "printf '8 node3\\n7 node[1-2]\\n9 \\n'")
    command(slurm, "scontrol", f'echo "$*" >>asked; {SLURM["scontrol"]}')
    assert launcher().nodes() == ("node1", "node2")
    assert set((slurm / "asked").read_text().splitlines()) == {"show hostnames node[1-2]"}


def test_ranks_that_are_told_while_a_port_is_taken_are_not_started_again(slurm: Path) -> None:
    """Nobody would tell the next ones, until they are killed."""
    knows_steps(slurm)
    does(slurm, 1, **dict.fromkeys(("node1", "node2"), f"until [ -e over ]; do sleep 0.05; done; exit {PORT_TAKEN}"))
    agents = launcher()
    thread = told_once_there(agents, signal.SIGTERM)
    assert agents.run(2).code == 143
    thread.join()
    assert len((slurm / "started.node1").read_text().splitlines()) == 1


def test_ranks_of_a_run_before_are_not_told_for_those_of_the_next(slurm: Path) -> None:
    """Slurm may know their steps a while longer."""
    knows_steps(slurm)
    agents = launcher()
    assert agents.run(2) == RunResult(0)
    told = list[bool]()
    once = f"[ -e looked ] || {{ touch looked; until [ -e go ]; do sleep 0.05; done; }}; {SLURM['squeue']}"
    command(slurm, "squeue", f'case "$*" in *--steps*) cat steps;; *) {once};; esac')

    def tell() -> None:
        until = time.monotonic() + 20
        while not (slurm / "looked").exists() and time.monotonic() < until:
            time.sleep(0.02)
        told.append(agents.send(signal.SIGTERM))
        (slurm / "go").touch()

    thread = threading.Thread(target=tell)
    thread.start()
    assert agents.run(2) == RunResult(0)
    thread.join()
    assert told == [False]


def test_agents_that_outlive_a_kill_are_killed_again(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm has not answered, say. Else the job would wait for them forever."""
    monkeypatch.setattr(by_srun, "_OTHERS_S", 0.3)
    knows_steps(slurm)
    command(slurm, "scancel", 'echo "$1" >>cancelled; [ $(grep -c KILL cancelled) -lt 2 ] || touch over')
    waits = "for _ in $(seq 300); do [ -e over ] && exit 137; sleep 0.05; done; exit 9"
    does(slurm, 1, node1=waits, node2=waits)
    agents = launcher()
    thread = told_once_there(agents, signal.SIGKILL)
    assert agents.run(2).code == 137 and agents.nodes() == ("node1", "node2")
    thread.join()


def test_agents_that_cannot_be_killed_are_not_done(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their node's file system hangs, say."""
    monkeypatch.setattr(by_srun, "_OTHERS_S", 0.3)
    knows_steps(slurm)
    does(slurm, 1, node1="exit 0", node2="exec sleep 60")
    agents = launcher()
    thread = told_once_there(agents, signal.SIGKILL)
    assert agents.run(2) == RunResult(-signal.SIGKILL, node="node2")
    thread.join()


def test_agents_that_are_killed_as_they_cannot_meet_leave_nothing_to_the_next(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for an answer of somebody else's program."""
    monkeypatch.setattr(by_srun, "_OTHERS_S", 0.3)
    knows_steps(slurm)
    does(slurm, 1, node1=f"exit {PORT_TAKEN}", node2="until grep -s KILL cancelled; do sleep 0.05; done; exit 137")
    does(slurm, 2, node1="rm cancelled; sleep 1.5; [ ! -e cancelled ]")
    agents = launcher()
    assert agents.run(2) == RunResult(0) and agents.nodes() == ("node1", "node2")


def test_nodes_have_their_time_for_a_checkpoint_when_one_has_left(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_srun, "_OTHERS_S", 0.3)
    knows_steps(slurm)
    saves = "sleep 1.5; grep -s KILL cancelled && exit 137; touch saved; exit 143"
    does(slurm, 1, node1="exit 143", node2=saves)
    assert launcher().run(2) == RunResult(143, node="node1") and (slurm / "saved").exists()


def test_a_kill_that_slurm_has_not_heard_of_is_none(slurm: Path) -> None:
    command(slurm, "squeue", "exit 1")
    assert not launcher().send(signal.SIGKILL)


def test_memory_that_is_used_up_is_not_the_fault_of_the_node(slurm: Path) -> None:
    """Slurm says 253 then, whatever the agent said."""
    does(slurm, 1, node2="exit 253")
    agents = launcher()
    assert agents.run(2) == RunResult(253, node="node2") and agents.nodes() == ("node1", "node2")


def test_the_node_that_others_wait_for_is_lost_and_not_they(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file system hangs, say, so that its agent does not begin; one that came late is left alone."""
    monkeypatch.setattr(by_srun, "_OTHERS_S", 0.3)
    knows_steps(slurm)
    does(slurm, 1, node1=f"exit {NOT_MET}", node2="until grep -s KILL cancelled; do sleep 0.05; done; exit 137")
    does(slurm, 2, node1="exit 1", node2=f"exit {NOT_MET}")
    agents = launcher()
    assert agents.run(2) == RunResult(NOT_MET, node="node1") and agents.nodes() == ("node1",)
    agents = launcher()
    assert agents.run(2).code in (1, NOT_MET) and agents.nodes() == ("node1", "node2")


def test_a_signal_as_the_nodes_have_ended_is_told(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = SrunLauncher._wait

    def then_told(self: SrunLauncher, steps: dict[str, subprocess.Popen[bytes]]) -> RunResult:
        ended = wait(self, steps)
        os.kill(os.getpid(), signal.SIGTERM)
        return ended

    monkeypatch.setattr(SrunLauncher, "_wait", then_told)
    does(slurm, 1, node1=f"exit {FAILED}")
    with handlers_kept():
        assert launcher().run(1) == RunResult(143, by_signal=signal.SIGTERM)
