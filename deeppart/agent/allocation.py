"""Starts an agent on each node of a Slurm allocation, from its batch script or from a shell of ``salloc``."""

from __future__ import annotations

import math
import os
import selectors
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from deeppart.agent.agent import received_signals
from deeppart.agent.command import SIGNALS
from deeppart.agent.job import TOO_FEW_NODES, JobOptions, stop_code
from deeppart.agent.links import BEAT_S, Credentials, connect, receive
from deeppart.agent.messages import OBSERVER, Asked, Joined, Lines, Over, encode
from deeppart.errors import LaunchError

#: One agent on each node, even if an earlier step is still ending there, on all processors of the job.
_SRUN = (
    *("srun", "--quiet", "--ntasks-per-node=1", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"),
    *("--overlap", "--mpi=none", "--cpu-bind=none"),
    "--export=ALL",  # overrides --export=NONE of the job, which srun would inherit
)
#: Variables of job options with which the only task of a node would not get all of its GPUs.
_TASK_GPUS = ("SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU")
_ANSWER_S = 60.0
#: Time for srun to end after the agents have ended, or after a signal without any agent.
_END_S = 30.0


def addresses_of(nodes: str) -> list[str]:
    """The addresses of nodes such as ``node[1-2]``, by Slurm and in order, since their names may not be resolvable."""
    lines = _ask("sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %o").splitlines()
    known = dict(line.split() for line in lines)
    names = _ask("scontrol", "show", "hostnames", nodes).split()
    return [known.get(name, name) for name in names]


def end_of_job() -> float:
    """When Slurm ends this job, in seconds since 1970; infinite if that is unknown or there is no limit."""
    job, text = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_JOB_END_TIME", "")
    with suppress(LaunchError, ValueError):
        if text:
            return float(text)
        if job:
            # The profile of the user or site may set another format.
            end = _ask("env", "SLURM_TIME_FORMAT=standard", "squeue", "--noheader", f"--jobs={job}", "--format=%e")
            return datetime.fromisoformat(end.strip()).timestamp()
    return math.inf


def _ask(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_ANSWER_S).stdout
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        raise LaunchError("Slurm does not answer", found=said.strip(), tried=" ".join(command)) from error


def run_on_all_nodes(words: Sequence[str], options: JobOptions, credentials: Credentials) -> int:
    """Start the agents with the command ``words`` on all nodes, and pass signals on to the leader. Returns the job's
    exit code.

    Signals are sent over the connections of the agents: Slurm would send them to all processes of all nodes.
    """
    if given := [f"{name}={os.environ[name]}" for name in _TASK_GPUS if os.environ.get(name)]:
        raise LaunchError(
            "with these options Slurm does not give one task of a node all its GPUs",
            expected="GPUs by the node: --gpus-per-node=N, or --gres=gpu:N", found=", ".join(given),
            todo="submit the job with one of these; or unset these variables and export SLURM_GPUS_PER_NODE=N",
        )  # fmt: skip
    count = len(options.nodes)
    with received_signals() as wakes:
        step = subprocess.Popen(
            [*_SRUN, f"--nodes={count}", f"--ntasks={count}", *words], stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            return _observe(step, wakes, options, credentials)
        finally:
            with suppress(subprocess.TimeoutExpired):
                step.wait(_END_S / 10)
            if step.poll() is None:  # it waits for lost nodes, or has no agents yet; SIGTERM makes it kill its tasks
                step.terminate()
                with suppress(subprocess.TimeoutExpired):
                    step.wait(_END_S)
            step.kill()
            step.wait()  # bounded: it was killed


def _observe(step: subprocess.Popen[bytes], wakes: socket.socket, options: JobOptions, credentials: Credentials) -> int:
    """The job's exit code; that of srun if no agent has reported one."""
    asked: list[int] = []  # signals that no agent has received yet
    first, no_agent_since_s = 0, time.monotonic()
    lines: Lines | None = None
    while True:
        if lines is None:
            lines = _find(options, credentials)
        with selectors.DefaultSelector() as selector:
            selector.register(wakes, selectors.EVENT_READ)
            if lines is not None:
                selector.register(lines, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(BEAT_S)]
        if wakes in ready:
            asked += [number for number in wakes.recv(64) if number in SIGNALS]
            first = first or asked[0]
        if lines in ready and lines is not None:
            messages = receive(lines)
            codes = [each.code for each in messages or () if isinstance(each, Over)]
            if codes:
                return codes[0]
            if messages is None:
                lines.socket.close()
                lines, no_agent_since_s = None, time.monotonic()
        while lines is not None and asked:
            lines.send(encode(Asked(asked.pop(0))))
        code = step.poll()
        if lines is None and code is not None:
            return stop_code(first) if first else code or TOO_FEW_NODES
        if lines is None and first and time.monotonic() > no_agent_since_s + _END_S:
            return stop_code(first)


def _find(options: JobOptions, credentials: Credentials) -> Lines | None:
    """Connect to the leader, if there is one."""
    for node in range(len(options.nodes)):
        with suppress(OSError):
            return connect(options.address(node), Joined(OBSERVER, "", 0, 0), credentials, options.silence_s)
    return None
