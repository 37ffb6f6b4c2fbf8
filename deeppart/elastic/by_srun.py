"""Ranks on the nodes of Slurm's allocation: a torchrun agent on each, which srun starts."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from types import FrameType

from deeppart.config import Allocation
from deeppart.errors import LaunchError

from .launching import SIGNALS, RunResult, handled_by, handled_signals
from .node_agent import FAILED, NO_COMMAND, NOT_MET, PORT_TAKEN, STOP_RANKS, Assignment
from .stop_request import EXIT_CODE

#: Between signals to ranks that have not ended; and looks for steps that Slurm does not know, or not any more.
_LOOK_EVERY_S, _TELL_EVERY_S, _ASK_EVERY_S = 0.05, 2.0, 0.5
#: For the others to end once one node has; for agents beyond their own time for a checkpoint; for Slurm to answer.
_OTHERS_S, _LATER_S, _ANSWER_S = 30.0, 10.0, 60.0
#: How long a busy or restarting controller is retried.
_AGAIN_S, _BUSY = 60.0, ("Unable to contact", "timed out", "Zero Bytes")
_PORTS = (20_000, 30_000)
_TRIES = 5
#: Of srun itself, by its variable: Slurm did not answer, or did not give it the step.
_NO_STEP = 74
#: Slurm says so, whatever the agent has said, if a process of the step was killed since there was no memory left.
_OUT_OF_MEMORY = 253
#: The agent has ended by itself, and its node is as good as before.
_OF_AGENTS = (0, EXIT_CODE, FAILED, NO_COMMAND, PORT_TAKEN, NOT_MET, _OUT_OF_MEMORY)
#: Of agents that a signal has ended before they had ranks to tell: it was sent to the job's steps, not by us.
_BY_SIGNAL = tuple(128 + number for number in SIGNALS)
#: For the 0 that srun ends with when Slurm has taken its node back.
_GIVEN_UP = 1
#: One agent on one node, beside whatever has not quite ended there, on all processors that the job has there.
_SRUN = (
    *("srun", "--quiet", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1"),
    *("--overlap", "--mpi=none", "--cpu-bind=none"),
    "--export=ALL",  # also where the job was submitted with --export=NONE, which srun would do, too
)
#: Options of the job that Slurm takes for those of a step, too: one of one node among several cannot have the GPUs of
#: all; and one on any has those of one task, or may not say how many tasks it has.
_OF_ALL, _OF_TASKS = ("SLURM_GPUS", "SLURM_GPUS_PER_SOCKET"), ("SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU")


def divide_ranks(ranks: int, nodes: int) -> list[int]:
    """Ranks of each node, as even as can be, the first ones with more; nodes without any are left out.

    Example:
        >>> from deeppart.elastic.by_srun import divide_ranks
        >>> divide_ranks(7, 3), divide_ranks(2, 3)
        ([3, 2, 2], [1, 1])
    """
    each, more = divmod(ranks, nodes)
    return [each + (node < more) for node in range(min(ranks, nodes))]


class SrunLauncher:
    """The nodes of an allocation, of which there may be fewer from one run to the next.

    A node is lost once its agent has not ended by itself: it could not be started, was killed, or Slurm has given the
    node up. It is not used again.
    """

    def __init__(self, command: Sequence[str], grace_s: float, allocation: Allocation, most: int) -> None:
        self._command, self._grace_s, self._job = tuple(command), grace_s, allocation.job
        nodes = len(_listed(allocation.nodes))
        _refuse_gpus(allocation.job, nodes)
        self._per_node = -(-most // nodes)
        self._lost = set[str]()
        self._run = ""  # the name of its steps; written before there are any
        self._without_step = set[str]()  # in the last run
        self._killed = self._tells = False
        self._told: signal.Signals | None = None

    def nodes(self) -> tuple[str, ...]:
        """Those that Slurm has not taken back, and that are not lost."""
        lines = _ask("squeue", "--noheader", f"--jobs={self._job}", "--format=%A %N").splitlines()
        # The number of the last job of an array is that of the array, too.
        now = [words[1] for words in map(str.split, lines) if len(words) == 2 and words[0] == self._job]
        return tuple(node for node in _listed(now[0]) if node not in self._lost) if now else ()

    def room(self) -> int | None:
        """As of :class:`.launching.Launcher`."""
        return self._per_node * len(self.nodes())

    def run(self, ranks: int) -> RunResult:
        """As of :class:`.launching.Launcher` (in the main thread: signals to this process go to all agents)."""
        # First: another thread may send at once, and must not signal the ranks of the run before.
        self._run, self._tells, self._told = "", False, None
        for _ in range(_TRIES):
            ended = self._run_at_a_port(ranks)
            if self._told is not None:
                return RunResult(EXIT_CODE, by_signal=self._told)
            if ended.code not in (PORT_TAKEN, _NO_STEP):
                break
            if self._tells:  # to end: there are no ranks that could
                return RunResult(EXIT_CODE, node=ended.node)
        if ended.code == _NO_STEP:
            self._lost |= self._without_step
        if ended.code == NO_COMMAND:
            raise LaunchError(
                "the command of the ranks cannot be started",
                expected="a program that is there on every node",
                found=self._command[0],
                where=ended.where,
                todo="name a program, and its arguments; the node's agent has said what is wrong with this one",
            )
        return ended

    def _run_at_a_port(self, ranks: int) -> RunResult:
        nodes = self.nodes()
        if not nodes:
            raise LaunchError("Slurm has taken all nodes of this job back", where=f"job {self._job}")
        self._run, self._killed = uuid.uuid4().hex, False
        steps: dict[str, subprocess.Popen[bytes]] = {}
        with handled_by(self._hear, handled_signals()):
            try:
                self._start(steps, nodes, divide_ranks(ranks, len(nodes)))
                return self._wait(steps)
            finally:
                if any(step.poll() is None for step in steps.values()):
                    self.send(signal.SIGKILL)  # srun alone would leave its agent running
                for step in steps.values():
                    step.kill()
                    step.wait()  # bounded: it was killed

    def send(self, number: signal.Signals) -> bool:
        """As of :class:`.launching.Launcher`. By Slurm: srun takes SIGTERM for a wish to kill the ranks at once.

        SIGTERM goes to the ranks alone, by :data:`.node_agent.STOP_RANKS`, which is sent until they have ended.
        """
        return self._send(number, asked=True)

    def _send(self, number: signal.Signals, *, asked: bool) -> bool:
        try:
            lines = _ask("squeue", "--steps", "--noheader", f"--jobs={self._job}", "--format=%i %j", check=False)
        except LaunchError:  # the caller tries again
            return False
        steps = [line.split()[0] for line in lines.splitlines() if line.split()[1:] == [self._run]]
        if steps:  # what follows is known before they can end by it
            self._killed = self._killed or number == signal.SIGKILL
            self._tells = self._tells or (asked and number == signal.SIGTERM)
            sent = STOP_RANKS if number == signal.SIGTERM else number
            with contextlib.suppress(LaunchError):  # it is sent again
                _ask("scancel", f"--signal={sent.name.removeprefix('SIG')}", *steps, check=False)
        return bool(steps)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._told = signal.Signals(number)

    def _start(self, steps: dict[str, subprocess.Popen[bytes]], nodes: Sequence[str], shares: Sequence[int]) -> None:
        endpoint = f"{_address(nodes[0])}:{random.randrange(*_PORTS)}"
        for number, (node, share) in enumerate(zip(nodes, shares, strict=False)):
            assignment = Assignment(self._run, share, number, len(shares), endpoint, self._grace_s)
            agent = (sys.executable, "-m", "deeppart.elastic.node_agent", assignment.as_text(), *self._command)
            options = (f"--nodelist={node}", f"--job-name={self._run}")
            steps[node] = subprocess.Popen(
                [*_SRUN, *options, *agent], stdin=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, "SLURM_EXIT_ERROR": str(_NO_STEP)},
            )  # fmt: skip

    def _wait(self, steps: dict[str, subprocess.Popen[bytes]]) -> RunResult:
        """Until all nodes have ended: once one has failed, or has left, or this process is told, all are told."""
        running = dict(steps)
        first: RunResult | None = None
        failed, hanging = set[str](), set[str]()
        self._without_step = set()
        next_s, until_s, waits, unmet, kills = 0.0, float("inf"), False, False, False
        while running:
            time.sleep(_LOOK_EVERY_S)
            for node, code in [(node, code) for node in running if (code := running[node].poll()) is not None]:
                del running[node]
                if code == 0 and node not in self.nodes():
                    code = _GIVEN_UP
                if code in _BY_SIGNAL:
                    code = EXIT_CODE
                if code not in _OF_AGENTS and not self._killed and self._told is None:
                    (self._without_step if code == _NO_STEP else failed).add(node)
                unmet = unmet or code == NOT_MET
                if code == PORT_TAKEN or (code != 0 and first is None):
                    first = RunResult(code, node=node)
                    # Ranks that leave may not be the ones that make the checkpoint.
                    others_s = max(_OTHERS_S, self._grace_s + _LATER_S) if code == EXIT_CODE else _OTHERS_S
                    until_s = time.monotonic() + others_s
            if self._told is not None and not waits:
                waits, until_s = True, time.monotonic() + self._grace_s + _LATER_S
            ends = self._tells or first is not None or self._told is not None
            if running and ends and not self._killed and time.monotonic() >= next_s:
                sent = self._send(signal.SIGTERM, asked=False)
                next_s = time.monotonic() + (_TELL_EVERY_S if sent else _ASK_EVERY_S)
            if self._killed:
                until_s = min(until_s, time.monotonic() + _OTHERS_S)
            if time.monotonic() > until_s:
                if kills:  # Slurm does not know how these ended
                    first = first or RunResult(-signal.SIGKILL, node=next(iter(running)))
                    break
                kills, until_s = True, time.monotonic() + _OTHERS_S
                if not self._killed:
                    hanging = set(running)
                self._send(signal.SIGKILL, asked=False)
        if first is None:
            return RunResult(0)
        if unmet:  # those that the others have waited for, and not those that gave up; nor whom they left alone
            self._lost |= hanging
        elif first.code != PORT_TAKEN:  # others may have failed to meet there
            self._lost |= failed
        return first


def _refuse_gpus(job: str, nodes: int) -> None:
    """Of jobs in which every step would fail, as if all nodes were lost, or would have some of a node's GPUs."""
    names = (*_OF_ALL, *_OF_TASKS) if nodes > 1 else _OF_TASKS
    if given := [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]:
        raise LaunchError(
            "Slurm gives no step of one node the GPUs that the job has there",
            expected="GPUs by the node: --gpus-per-node=N, or --gres=gpu:N",
            found=", ".join(given),
            where=f"job {job}",
            todo="submit the job with one of these; or unset these variables and export SLURM_GPUS_PER_NODE=N",
        )


def _listed(nodes: str) -> list[str]:
    """``node[1-2]`` -> node1, node2."""
    return _ask("scontrol", "show", "hostnames", nodes).split()


def _address(node: str) -> str:
    """Of a node, as Slurm's daemons find it."""
    words = _ask("sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%o").split()
    return words[0] if words else node


def _ask(*command: str, check: bool = True) -> str:
    """What a command of Slurm says."""
    until_s = time.monotonic() + _AGAIN_S
    try:
        while True:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
            busy = done.returncode != 0 and any(each in done.stderr for each in _BUSY)
            if not busy or time.monotonic() > until_s:
                break
            time.sleep(1.0)
        if check:
            done.check_returncode()
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise LaunchError("Slurm does not answer", found=said.strip(), tried=" ".join(command)) from error
    return done.stdout.strip()
