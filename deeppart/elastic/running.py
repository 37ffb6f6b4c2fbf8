"""A job on one host whose number of ranks changes: torchrun's own agent, started again each time.

A change is: SIGTERM to the ranks, which make a checkpoint and exit with 143 (:mod:`deeppart.elastic.told`); then the
agent is started with another number of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from deeppart.errors import LaunchError
from deeppart.storage.manifests import committed_steps

from .schedule import Wanted
from .told import EXIT_CODE

_LOOK_EVERY_S = 0.1
#: What the agent passes on to the ranks, and ends by.
_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"


@dataclass(frozen=True, slots=True)
class Options:
    """How a job is run.

    Attributes:
        command: of each rank.
        checkpoints: the persistent directory: failures are counted anew when there is a newer step in it; None counts
            all of them.
        most_failures: in a row, without a new step in between.
        loses: after a failure go on with one rank less, if that is allowed.
        grace_s: seconds that ranks have for a checkpoint, until they are killed.
        log: of what happens, a line of JSON each; None for none.
    """

    command: tuple[str, ...]
    checkpoints: Path | None = None
    most_failures: int = 3
    loses: bool = False
    grace_s: float = 120.0
    log: Path | None = None


class ElasticRun:
    """One job, to its end.

    Args:
        options: of the job.
        wanted: how many ranks it is to have.
        least: ranks that it goes on with.
        say: prints a line.
    """

    def __init__(self, options: Options, wanted: Wanted, least: int, say: Callable[[str], object]) -> None:
        self._options, self._wanted, self._least, self._say = options, wanted, least, say
        self._began = time.monotonic()
        self._asked = False
        self._lost = 0  # ranks, of those that are wanted
        self._failures = 0
        self._newest: Any = None

    def run(self) -> int:
        """Start ranks until they are done.

        Returns:
            the exit code: 0; that of being told, if a signal has come.

        Raises:
            LaunchError: the ranks fail again and again, without a new checkpoint.
        """
        self._newest = self._newest_step()
        wanted = self._wanted.look(0.0)
        while True:
            ranks = max(self._least, wanted - self._lost)
            try:
                code, rank = self._launch(ranks, wanted)
            except SignalException as told:
                self._tell("told", signal=signal.Signals(told.sigval).name)
                return EXIT_CODE if told.sigval in (signal.SIGTERM, signal.SIGUSR1) else 128 + int(told.sigval)
            if code == 0:
                self._tell("done")
                return 0
            self._tell("ended", rank=rank, exit_code=code, asked=self._asked)
            if code == EXIT_CODE and not self._asked:  # by somebody else, who wants the job to end
                return EXIT_CODE
            now = self._wanted.look(self._passed_s())
            if self._asked or now != wanted:
                self._lost = 0
            if not (self._asked and code in (EXIT_CODE, -signal.SIGTERM)):
                self._count(code, rank, ranks)
            wanted = now

    def _launch(self, ranks: int, wanted: int) -> tuple[int, int]:
        """Run so many ranks until they end; returns the exit code and the rank that ended first."""
        self._asked = False
        run_id = uuid.uuid4().hex
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            run_id=run_id,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            monitor_interval=0.05,
            signals_to_handle=_SIGNALS,
            shutdown_timeout=max(1, int(self._options.grace_s)),
        )
        if ranks > 1:
            os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun
        self._tell("start", ranks=ranks)
        first, *more = self._options.command
        with self._watching(run_id, wanted):
            try:
                elastic_launch(config, first)(*more)
            except ChildFailedError as error:
                rank, failure = error.get_first_failure()
                return failure.exitcode, rank
        return 0, 0

    @contextlib.contextmanager
    def _watching(self, run_id: str, wanted: int) -> Iterator[None]:
        """Meanwhile a thread looks whether another number of ranks is wanted, and tells them."""
        over = threading.Event()
        thread = threading.Thread(target=self._watch, args=(over, run_id, wanted), name="elastic-run", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _watch(self, over: threading.Event, run_id: str, wanted: int) -> None:
        until_s: float | None = None
        while not over.wait(_LOOK_EVERY_S):
            now = self._wanted.look(self._passed_s())
            if self._wanted.refused is not None:
                self._say(f"not used: {self._wanted.refused}")
                self._wanted.refused = None
            if until_s is None and now != wanted and (ranks := ranks_of(run_id)):
                self._asked = True
                self._tell("change", ranks=now)
                until_s = time.monotonic() + self._options.grace_s
                _send(ranks, signal.SIGTERM)
            elif until_s is not None and time.monotonic() > until_s:
                self._say(f"ranks have not ended {self._options.grace_s:g} s after SIGTERM: they are killed")
                _send(ranks_of(run_id), signal.SIGKILL)
                until_s = float("inf")

    def _count(self, code: int, rank: int, ranks: int) -> None:
        """A failure: of how many in a row?

        Raises:
            LaunchError: of too many.
        """
        newest = self._newest_step()
        self._failures = 1 if newest != self._newest else self._failures + 1
        self._newest = newest
        if self._options.loses and not self._asked:
            self._lost += 1
        if self._failures > self._options.most_failures:
            raise LaunchError(
                f"the ranks failed {self._failures} times in a row, without a new checkpoint",
                found=f"rank {rank} of {ranks}: {_name(code)}",
                where=" ".join(self._options.command),
                todo="look at what it printed; --checkpoints DIR says where to look for progress"
                if self._options.checkpoints is None
                else f"look at what it printed; `deeppart ls {self._options.checkpoints}` shows the checkpoints",
            )

    def _newest_step(self) -> Any:
        if self._options.checkpoints is None or not self._options.checkpoints.is_dir():
            return None
        return max(committed_steps(self._options.checkpoints), default=None)

    def _passed_s(self) -> float:
        return time.monotonic() - self._began

    def _tell(self, event: str, **what: Any) -> None:
        values = ", ".join(f"{name} {value}" for name, value in what.items() if name != "exit_code")
        code = f": {_name(what['exit_code'])}" if "exit_code" in what else ""
        self._say(f"{self._passed_s():.1f} s: {event} {values}{code}".rstrip())
        if self._options.log is not None:
            with self._options.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"time": time.time(), "event": event, **what}) + "\n")


def ranks_of(run_id: str) -> list[int]:
    """The processes that the agent in this process has started for a run."""
    mine = f"TORCHELASTIC_RUN_ID={run_id}".encode()
    found = []
    for task in Path("/proc/self/task").iterdir():
        for pid in _read(task / "children").split():
            if mine in _read(Path("/proc") / pid.decode() / "environ").split(b"\0"):
                found.append(int(pid))
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def _send(ranks: Sequence[int], number: signal.Signals) -> None:
    for pid in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _name(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}" + (" (told to end, after a checkpoint)" if code == EXIT_CODE else "")
