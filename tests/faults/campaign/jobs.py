"""Starts jobs under mpirun, and bounds every wait for them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.faults.campaign import life
from tests.faults.campaign.judge import Outcome
from tests.faults.campaign.order import Order
from tests.mpi import launchers
from tests.mpi.launch import Job, start_ranks
from tests.processes import is_running

#: A serving job is replaced after so many lives: every start that is refused costs it an MPI communicator.
_LIVES_PER_JOB = 300
_FOREVER_S = 86_400.0
#: Starting a job takes seconds on an idle machine.
_START_S = 240.0
_LOOK_S = 0.005
_SINGLE = {"MPI4PY_RC_THREAD_LEVEL": "funneled"}


class HangError(Exception):
    """A job ran past its limit, or ended in the middle; it has been stopped."""


class Server:
    """A job that plays lives without kills, started when it is first needed.

    Args:
        ranks: how many.
        limit_s: seconds that a life may take.
        env: variables to set.
        directory: for orders.
    """

    def __init__(self, ranks: int, limit_s: float, env: dict[str, str], directory: Path) -> None:
        self._ranks, self._limit_s, self._env, self._directory = ranks, limit_s, env, directory
        self._job: Job | None = None
        self._spool = Path()
        self._count = 0

    def play(self, order: Order) -> None:
        """Play one life.

        Raises:
            HangError: see there.
        """
        if self._count >= _LIVES_PER_JOB:
            self.close()
        if self._job is None:
            self._spool = Path(tempfile.mkdtemp(dir=self._directory))
            self._job = start_ranks(
                self._ranks, life.serve, self._spool, os.getpid(), timeout=_FOREVER_S, env=self._env
            )
            self._count = 0
            self._wait(lambda: all((self._spool / f"ready-{rank}").exists() for rank in range(self._ranks)), _START_S)
        records = [order.record_of(rank) for rank in range(order.life.world)]
        order.save(self._spool / f"order-{self._count}.json")
        self._count += 1
        self._wait(lambda: all(_ended(record) for record in records), self._limit_s)

    def _wait(self, condition: Callable[[], bool], limit_s: float) -> None:
        assert self._job is not None
        try:
            self._job.wait_for(condition, limit_s)
        except AssertionError as error:
            self.close()
            raise HangError(_trimmed(str(error))) from error

    def close(self) -> None:
        """End the job."""
        job, self._job = self._job, None
        if job is not None:
            job.__exit__()
            shutil.rmtree(self._spool, ignore_errors=True)
        self._count = 0


class Jobs:
    """All jobs of one worker.

    Args:
        ranks: of the serving jobs.
        limit_s: seconds that a life may take.
        directory: for small files.
        hash_seed: of the ranks' interpreters: in which order they see sets of names.
    """

    def __init__(self, ranks: int, limit_s: float, directory: Path, hash_seed: int) -> None:
        self._limit_s, self._directory = limit_s, directory
        self._env = {"PYTHONHASHSEED": str(hash_seed % (1 << 32))}
        environments = {True: self._env, False: self._env | _SINGLE}
        self._servers = {threads: Server(ranks, limit_s, env, directory) for threads, env in environments.items()}
        self._alone: Job | None = None
        self._is_over = False

    def play(self, order: Order) -> tuple[int, ...]:
        """Play one life to its end, natural or not.

        Returns:
            Process ids of ranks that were left behind, stopped.

        Raises:
            HangError: it went on for too long, or these jobs were closed meanwhile.
        """
        if self._is_over:
            raise HangError("the campaign was interrupted")
        if not order.life.alone:
            server = self._servers[order.scenario.threads]
            server.play(order)
            if any(True for _ in Outcome(order).events("exception")):
                server.close()  # its ranks may be anywhere
            return ()
        return self._play_alone(order)

    def _play_alone(self, order: Order) -> tuple[int, ...]:
        """A life in which processes end has a job of its own."""
        path = order.base / f"order-{order.number}.json"
        order.save(path)
        env = self._env | ({} if order.scenario.threads else _SINGLE)
        patient = self._patient if _lingers(order) else None
        limit_s = _START_S + self._limit_s
        try:
            with start_ranks(order.life.world, life.play_alone, path, timeout=limit_s, env=env, mpiexec=patient) as job:
                self._alone = job
                if patient is not None:
                    return self._watch(order, job, limit_s)
                job.wait(expect_rc=None)
        except AssertionError as error:
            raise HangError(_trimmed(str(error))) from error
        finally:
            self._alone = None
        return ()

    def _watch(self, order: Order, job: Job, limit_s: float) -> tuple[int, ...]:
        """The others go on for a while when a rank is gone, or stopped; leaving the block ends what is left."""
        records = [order.record_of(rank) for rank in range(order.life.world)]
        incident, kill = order.life.incident, order.life.kill

        def happened() -> bool:
            return any(map(_struck, records)) or any(map(_stopping, records)) or all(map(_over, records))

        job.wait_for(happened, limit_s)
        stopped = next(((rank, pid) for rank, each in enumerate(records) if (pid := _stopping(each))), None)
        if stopped is not None and incident is not None:
            time.sleep(incident.seconds)
            if incident.kind == "zombie":
                job.leave_behind(stopped[0])
                return (stopped[1],)
            with contextlib.suppress(ProcessLookupError):
                os.kill(stopped[1], signal.SIGCONT)
        elif any(map(_struck, records)):
            linger_s = kill.linger_s if kill is not None else incident.linger_s if incident is not None else 0.0
            deadline = time.monotonic() + linger_s
            while time.monotonic() < deadline and not all(map(_over, records)):
                time.sleep(_LOOK_S)
            return ()
        job.wait_for(lambda: all(map(_over, records)), limit_s)
        return ()

    @functools.cached_property
    def _patient(self) -> Path | None:
        """A launcher that lets the other ranks of a job go on when one has died; None where there is none."""
        launcher = launchers.find_mpiexec()
        if launcher is None or not launchers.is_hydra(launcher):
            return None
        script = self._directory / "patient-mpirun"
        script.write_text(f'#!/bin/sh\nexec "{launcher}" -disable-auto-cleanup "$@"\n')
        script.chmod(0o700)
        return script

    def close(self) -> None:
        """End all jobs; there are no more."""
        self._is_over = True
        if (alone := self._alone) is not None:
            alone.__exit__()
        for server in self._servers.values():
            server.close()


def _ended(record: Path) -> bool:
    return record.exists() and record.read_bytes().endswith(b'{"event": "end"}\n')


def _struck(record: Path) -> bool:
    return record.exists() and b'{"event": "killing"' in record.read_bytes()


def _stopping(record: Path) -> int:
    """The process that has stopped itself, and was not seen to go on; 0 for none."""
    lines = record.read_bytes().splitlines() if record.exists() else []
    for line in lines:
        if line.startswith(b'{"event": "stopping"') and line.endswith(b"}"):
            return int(json.loads(line)["pid"])
    return 0


def _over(record: Path) -> bool:
    """Whether nothing more is to be expected of a rank."""
    return _ended(record) or _struck(record)


def _lingers(order: Order) -> bool:
    """Whether ranks go on without one of them."""
    kill, incident = order.life.kill, order.life.incident
    if incident is not None:
        return incident.kind in ("stop", "zombie") or incident.linger_s > 0
    return kill is not None and kill.linger_s > 0


def end_process(pid: int, patience_s: float) -> bool:
    """Wait for a process that is not a child to end; kill it if it does not. Returns whether it had to be."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and is_running(pid):
        time.sleep(_LOOK_S)
    killed = is_running(pid)
    if killed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return killed


def _trimmed(text: str) -> str:
    """The stacks of a job without the frames that are always there."""
    dull = ["runpy", "mpi4py/", "rank_main.py", "threading.py"]
    dull += ["=====", "=   ", "YOUR APPLICATION", "Please see", "This typic"]  # what mpirun says
    return "\n".join(line for line in text.splitlines() if line.strip() and not any(word in line for word in dull))
