"""Ranks on the nodes of a Slurm allocation: srun starts a torchrun agent (:mod:`.node_agent`) on each node."""

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

from .launching import SIGNALS, Assignment, Launcher, RunResult, handled_signals, signals_handled
from .node_agent import FAILED, NO_COMMAND, NOT_MET, PORT_TAKEN, STOP_RANKS
from .stop_request import EXIT_CODE

#: SIGTERM is repeated: slower once Slurm knows the steps, faster until then.
_POLL_S, _REPEAT_S, _RETRY_S = 0.05, 2.0, 0.5
#: For the other nodes after the first has ended; for agents beyond the grace period; for an answer of Slurm.
_OTHERS_S, _EXTRA_S, _ANSWER_S = 30.0, 10.0, 60.0
#: How long requests are repeated while the controller is busy or restarting, and how Slurm says so.
_BUSY_S, _BUSY = 60.0, ("Unable to contact", "timed out", "Zero Bytes")
_PORTS = (20_000, 30_000)
_TRIES = 5
#: Exit code of srun, set by SLURM_EXIT_ERROR, if Slurm did not answer or did not create the step.
_NO_STEP = 74
#: Exit code from Slurm, whatever the agent's own was, if a process of the step was killed for lack of memory.
_OUT_OF_MEMORY = 253
#: After these exit codes the node is still usable.
_NODE_USABLE = (0, EXIT_CODE, FAILED, NO_COMMAND, PORT_TAKEN, NOT_MET, _OUT_OF_MEMORY)
#: Exit codes of agents that a signal to all steps of the job ended before they had ranks.
_ENDED_BY_SIGNAL = tuple(128 + number for number in SIGNALS)
#: Replaces srun's exit code 0 if Slurm has taken the node back.
_NODE_GONE = 1
#: One agent on one node, also while an earlier step is still ending there, on all processors of the job.
_SRUN = (
    *("srun", "--quiet", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1"),
    *("--overlap", "--mpi=none", "--cpu-bind=none"),
    "--export=ALL",  # overrides --export=NONE of the job, which srun would inherit
)
#: Job options that srun applies to steps. A step on one of several nodes cannot have the GPUs of the whole job, and a
#: step with one task would get the GPUs of one task or be refused.
_JOB_GPUS, _TASK_GPUS = ("SLURM_GPUS", "SLURM_GPUS_PER_SOCKET"), ("SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU")


def divide_ranks(ranks: int, nodes: int) -> list[int]:
    """Ranks per node, as even as possible, larger numbers first; nodes without ranks are left out.

    Example:
        >>> from deeppart.elastic.srun import divide_ranks
        >>> divide_ranks(7, 3), divide_ranks(2, 3)
        ([3, 2, 2], [1, 1])
    """
    each, more = divmod(ranks, nodes)
    return [each + (node < more) for node in range(min(ranks, nodes))]


class SrunLauncher(Launcher):
    """Runs ranks on the nodes of an allocation, which may shrink between runs.

    A node whose agent could not be started or was killed, or which Slurm took back, is not used again.
    """

    def __init__(self, command: Sequence[str], grace_s: float, allocation: Allocation, max_ranks: int) -> None:
        self._command, self._grace_s, self._job = tuple(command), grace_s, allocation.job
        nodes = len(_expand(allocation.nodes))
        _check_gpu_options(allocation.job, nodes)
        self._ranks_per_node = -(-max_ranks // nodes)
        self._lost = set[str]()
        self._run = ""  # name of the steps of this run
        self._without_step = set[str]()  # nodes of the last run on which Slurm created no step
        self._killed = False  # SIGKILL was sent in this run
        self._stopping = False  # the caller sent SIGTERM in this run
        self._received: signal.Signals | None = None

    def nodes(self) -> tuple[str, ...]:
        """Nodes that Slurm has not taken back and that are not lost."""
        lines = _ask("squeue", "--noheader", f"--jobs={self._job}", "--format=%A %N").splitlines()
        # The last job of an array has the number of the array, so squeue lists others, too.
        now = [words[1] for words in map(str.split, lines) if len(words) == 2 and words[0] == self._job]
        return tuple(node for node in _expand(now[0]) if node not in self._lost) if now else ()

    def capacity(self) -> int | None:
        """The share of the maximum number of ranks that the remaining nodes had at the start."""
        return self._ranks_per_node * len(self.nodes())

    def run(self, ranks: int) -> RunResult:
        """See :meth:`.launching.Launcher.run`. Main thread only: signals to this process go to all agents."""
        # Reset first: send() in another thread must not signal the previous run.
        self._run, self._stopping, self._received = "", False, None
        for _ in range(_TRIES):
            result = self._try(ranks)
            if self._received is not None:
                return RunResult(EXIT_CODE, by_signal=self._received)
            if result.code not in (PORT_TAKEN, _NO_STEP):
                break
            if self._stopping:
                return RunResult(EXIT_CODE, node=result.node)
        if result.code == _NO_STEP:
            self._lost |= self._without_step
        if result.code == NO_COMMAND:
            raise LaunchError(
                "the command of the ranks cannot be started",
                expected="a program that exists on every node",
                found=self._command[0],
                where=result.where,
                todo="name a program and its arguments; the node's agent printed what is wrong with this one",
            )
        return result

    def _try(self, ranks: int) -> RunResult:
        nodes = self.nodes()
        if not nodes:
            raise LaunchError("Slurm has taken all nodes of this job back", where=f"job {self._job}")
        self._run, self._killed = uuid.uuid4().hex, False
        steps: dict[str, subprocess.Popen[bytes]] = {}
        with signals_handled(self._receive, handled_signals()):
            try:
                self._start(steps, nodes, divide_ranks(ranks, len(nodes)))
                return self._wait(steps)
            finally:
                if any(step.poll() is None for step in steps.values()):
                    self.send(signal.SIGKILL)  # killing srun alone would leave its agent running
                for step in steps.values():
                    step.kill()
                    step.wait()  # bounded: it was killed

    def send(self, number: signal.Signals) -> bool:
        """See :meth:`.launching.Launcher.send`. Uses scancel: on SIGTERM srun itself would kill the ranks at once.

        SIGTERM is sent as :data:`.node_agent.STOP_RANKS`, to the ranks alone, and repeated until they end.
        """
        return self._send(number, by_caller=True)

    def _send(self, number: signal.Signals, *, by_caller: bool) -> bool:
        try:
            lines = _ask("squeue", "--steps", "--noheader", f"--jobs={self._job}", "--format=%i %j", check=False)
        except LaunchError:  # the caller tries again
            return False
        steps = [line.split()[0] for line in lines.splitlines() if line.split()[1:] == [self._run]]
        if steps:  # set before the signal can end the steps
            self._killed = self._killed or number == signal.SIGKILL
            self._stopping = self._stopping or (by_caller and number == signal.SIGTERM)
            sent = STOP_RANKS if number == signal.SIGTERM else number
            with contextlib.suppress(LaunchError):  # the signal is repeated
                _ask("scancel", f"--signal={sent.name.removeprefix('SIG')}", *steps, check=False)
        return bool(steps)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received = signal.Signals(number)

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
        """Wait for all nodes; once one ends, or this process or the ranks are signalled, stop the others."""
        running = dict(steps)
        first: RunResult | None = None
        failed, hanging = set[str](), set[str]()
        self._without_step = set()
        send_at_s, deadline_s = 0.0, float("inf")
        signal_seen = missed_rendezvous = kill_sent = False
        while running:
            time.sleep(_POLL_S)
            for node, code in [(node, code) for node in running if (code := running[node].poll()) is not None]:
                del running[node]
                if code == 0 and node not in self.nodes():
                    code = _NODE_GONE
                if code in _ENDED_BY_SIGNAL:
                    code = EXIT_CODE
                if code not in _NODE_USABLE and not self._killed and self._received is None:
                    (self._without_step if code == _NO_STEP else failed).add(node)
                missed_rendezvous = missed_rendezvous or code == NOT_MET
                if code == PORT_TAKEN or (code != 0 and first is None):
                    first = RunResult(code, node=node)
                    # After a stop request, the remaining ranks may be the ones that write the checkpoint.
                    others_s = max(_OTHERS_S, self._grace_s + _EXTRA_S) if code == EXIT_CODE else _OTHERS_S
                    deadline_s = time.monotonic() + others_s
            if self._received is not None and not signal_seen:
                signal_seen, deadline_s = True, time.monotonic() + self._grace_s + _EXTRA_S
            stopping = self._stopping or first is not None or self._received is not None
            if running and stopping and not self._killed and time.monotonic() >= send_at_s:
                sent = self._send(signal.SIGTERM, by_caller=False)
                send_at_s = time.monotonic() + (_REPEAT_S if sent else _RETRY_S)
            if self._killed:
                deadline_s = min(deadline_s, time.monotonic() + _OTHERS_S)
            if time.monotonic() > deadline_s:
                if kill_sent:  # Slurm has lost track of these steps
                    first = first or RunResult(-signal.SIGKILL, node=next(iter(running)))
                    break
                kill_sent, deadline_s = True, time.monotonic() + _OTHERS_S
                if not self._killed:
                    hanging = set(running)
                self._send(signal.SIGKILL, by_caller=False)
        if first is None:
            return RunResult(0)
        if missed_rendezvous:  # the nodes that did not arrive are at fault, not those that timed out waiting for them
            self._lost |= hanging
        elif first.code != PORT_TAKEN:  # which makes the other agents fail, too
            self._lost |= failed
        return first


def _check_gpu_options(job: str, nodes: int) -> None:
    """Raise for options with which every step would fail, or would get a part of the node's GPUs."""
    names = (*_JOB_GPUS, *_TASK_GPUS) if nodes > 1 else _TASK_GPUS
    if given := [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]:
        raise LaunchError(
            "with these options Slurm does not give a step on one node all GPUs of the job there",
            expected="GPUs by the node: --gpus-per-node=N, or --gres=gpu:N",
            found=", ".join(given),
            where=f"job {job}",
            todo="submit the job with one of these; or unset these variables and export SLURM_GPUS_PER_NODE=N",
        )


def _expand(nodes: str) -> list[str]:
    """``node[1-2]`` -> node1, node2."""
    return _ask("scontrol", "show", "hostnames", nodes).split()


def _address(node: str) -> str:
    """The address at which Slurm's daemons reach a node."""
    words = _ask("sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%o").split()
    return words[0] if words else node


def _ask(*command: str, check: bool = True) -> str:
    """Output of a Slurm command, repeated while the controller is busy."""
    deadline_s = time.monotonic() + _BUSY_S
    try:
        while True:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
            busy = done.returncode != 0 and any(each in done.stderr for each in _BUSY)
            if not busy or time.monotonic() > deadline_s:
                break
            time.sleep(1.0)
        if check:
            done.check_returncode()
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise LaunchError("Slurm does not answer", found=said.strip(), tried=" ".join(command)) from error
    return done.stdout.strip()
