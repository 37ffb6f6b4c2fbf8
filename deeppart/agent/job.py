"""Keeps a job alive on one host: starts its ranks, and starts all of them again when one has failed.

A failure is a rank that ends with any code but 0, or 143 after a request to stop. Then the other ranks are killed,
which ends nearly every hang, and all are forked again from the zygote. They restore the newest step that is complete.
"""

from __future__ import annotations

import fcntl
import math
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deeppart.agent.command import NOT_FORKED, STACKS_SIGNAL, Command
from deeppart.agent.starting import KILLED_WITHIN_S, Ended, Zygote
from deeppart.agent.watch import Hang, HangWatch
from deeppart.errors import LaunchError
from deeppart.progress import DIRECTORY_VARIABLE, Progress, make_cell, read_cell, read_modules, stacks_file

#: Exit code of ranks that were asked to stop, and of the job then: schedulers and torchrun know it.
STOPPED = 143
#: Exit code of a job that was given up.
GIVEN_UP = 1
#: Signals that are passed on to the ranks.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
_LOOK_EVERY_S = 1.0
#: Ranks have so long to print their stacks.
_STACKS_WITHIN_S = 1.0
_DIRECTORY = "deeppart-run-"


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How a job is run.

    Attributes:
        ranks: how many.
        failures: how many in a row without a new step, until the job is given up.
        preload: modules that the zygote imports; None for those of the script.
        grace_s: seconds that ranks have after a signal, until they are killed.
        hang_s: seconds without a step after which the ranks hang, or ten times the median of a step if that is more;
            None: they are never taken for hung.
    """

    ranks: int
    failures: int = 3
    preload: tuple[str, ...] | None = None
    grace_s: float = 120.0
    hang_s: float | None = None


class Job:
    """One job, to its end. One thread."""

    def __init__(self, command: Command, options: JobOptions, tell: Callable[..., object]) -> None:
        """``tell``: called with the name of an event, and what is known of it by keyword."""
        self._command, self._options, self._tell = command, options, tell
        self._epoch = self._failed = 0
        self._newest = -1
        self._stopping: signal.Signals | None = None
        self._next: Zygote | None = None
        self._watch = HangWatch(options.hang_s)
        self._learns = options.preload is None and bool(command.interpreter)

    def run(self) -> int:
        """Run the job; returns its exit code."""
        with _own_directory() as self._directory, _signals() as self._signals:
            return self._run()

    def _run(self) -> int:
        preload = self._options.preload
        self._zygote = self._new_zygote(self._command.imports() if preload is None else list(preload))
        try:
            while True:
                self._make_ready()
                if self._stopping is not None:
                    return self._stopped()
                ended = self._run_epoch()
                if ended is None:
                    return 0
                if ended.code == STOPPED or self._stopping is not None:
                    return self._stopped()
                if not self._goes_on(ended):
                    return GIVEN_UP
        finally:
            for each in (self._zygote, self._next):
                if each is not None:
                    each.close()

    def _stopped(self) -> int:
        """The exit code after a request to stop."""
        by = self._stopping
        return STOPPED if by in (None, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2) else 128 + int(by)

    def _goes_on(self, ended: Ended) -> bool:
        """Count a failure; true if the ranks are started again."""
        newest = max(each.step for each in self._progress())
        self._failed = 1 if newest > self._newest else self._failed + 1
        self._newest = max(newest, self._newest)
        self._tell("failed", rank=ended.rank, exit_code=ended.code, step=None if newest < 0 else newest)
        if self._failed > self._options.failures:
            self._tell("given up", text=f"{self._failed} failures in a row without a new step")
            return False
        return True

    # --- one epoch ---

    def _run_epoch(self) -> Ended | None:
        """Start all ranks and wait until they have ended; returns the first that has failed or stopped, or None."""
        self._epoch += 1
        ranks, port = range(self._options.ranks), _free_port()
        for rank in ranks:
            make_cell(self._directory, rank)
        for rank in ranks:
            self._zygote.start(rank, self._environment(rank, port))
        self._tell("started", epoch=self._epoch)
        first: Ended | None = None
        hang: Hang | None = None
        left, kill_at_s = len(ranks), math.inf
        self._watch.begin()
        while left:
            for each in self._wait():
                left -= 1
                if each.code != 0 and first is None:
                    first = each
                    asked = each.code == STOPPED or self._stopping is not None
                    kill_at_s = time.monotonic() + (self._options.grace_s if asked else 0.0)
            if self._zygote.has_ended:  # and its ranks with it
                return first or Ended(None, self._zygote.exit_code or 1)
            if self._stopping is not None and kill_at_s == math.inf:
                kill_at_s = time.monotonic() + self._options.grace_s
            if first is None and (hang := self._look_for_hang()) is not None:
                first, kill_at_s = Ended(hang.ranks[0], -signal.SIGKILL), time.monotonic() + _STACKS_WITHIN_S
            if left and time.monotonic() >= kill_at_s:
                if hang is not None:
                    self._show_stacks()
                    hang = None
                self._zygote.kill()
                if time.monotonic() > kill_at_s + KILLED_WITHIN_S:
                    self._zygote.close(0.0)  # names those that cannot be killed
            self._prepare_next()
        if first is not None:
            self._zygote.kill()  # what those that have ended have left
        self._zygote.forget()
        return first

    def _look_for_hang(self) -> Hang | None:
        """Whether the ranks hang; if so, have them write their stacks."""
        hang = self._watch.look(self._progress(), time.monotonic())
        if hang is not None:
            behind = " and ".join(f"rank {rank}" for rank in hang.ranks)
            text = f"no step for {hang.silent_s:.0f} s, of {hang.step_s:.2g} s each; behind: {behind}"
            self._tell("hang", text=text)
            self._zygote.signal(STACKS_SIGNAL)
        return hang

    def _show_stacks(self) -> None:
        """Print the stacks of all ranks, one after the other."""
        for rank in range(self._options.ranks):
            with suppress(OSError):
                text = stacks_file(self._directory, rank).read_text(errors="replace")
                sys.stderr.write(f"deeppart run: rank {rank}:\n{text}")

    def _progress(self) -> list[Progress]:
        """What the ranks have reported."""
        return [read_cell(self._directory, rank) for rank in range(self._options.ranks)]

    def _environment(self, rank: int, port: int) -> dict[str, str]:
        """The variables of a rank, named as torchrun names them."""
        own, ranks = str(rank), str(self._options.ranks)
        return os.environ | self._threads() | {
            "RANK": own, "LOCAL_RANK": own, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks,
            "ROLE_RANK": own, "ROLE_WORLD_SIZE": ranks, "ROLE_NAME": "default",
            "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": str(self._epoch - 1),
            "TORCHELASTIC_MAX_RESTARTS": str(self._options.failures), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            DIRECTORY_VARIABLE: str(self._directory), "DEEPPART_EPOCH": str(self._epoch),
        }  # fmt: skip

    def _threads(self) -> dict[str, str]:
        """As torchrun: each of several ranks has one OpenMP thread, unless OMP_NUM_THREADS says otherwise."""
        return {"OMP_NUM_THREADS": "1"} if self._options.ranks > 1 and "OMP_NUM_THREADS" not in os.environ else {}

    # --- zygotes ---

    def _new_zygote(self, modules: list[str]) -> Zygote:
        # numpy's library would start threads when it is imported.
        return Zygote(self._command, modules, {"OPENBLAS_NUM_THREADS": "1"} | os.environ | self._threads())

    def _make_ready(self) -> None:
        """Have a zygote that can start ranks; the one with the modules of the last epoch if that is ready."""
        if self._next is not None and self._next.is_ready:
            self._zygote.close()
            self._zygote, self._next = self._next, None
        if self._zygote.is_ready and self._zygote.has_ended:  # it was killed
            self._zygote.close()
            self._zygote = self._new_zygote(list(self._zygote.modules))
        while not self._zygote.is_ready and self._stopping is None:
            self._wait()
            if self._zygote.has_ended:
                self._zygote.close()
                self._zygote = self._in_place_of(self._zygote)

    def _in_place_of(self, zygote: Zygote) -> Zygote:
        """Another zygote, in place of one that has ended before it was ready."""
        if zygote.refused is not None:
            module, why = zygote.refused
            self._tell("note", text=f"{module} {why} when it is imported: ranks import it themselves, and what follows")
            return self._new_zygote(list(zygote.modules[: zygote.modules.index(module)]))
        if zygote.exit_code is not None and zygote.exit_code < 0 and self._failed < self._options.failures:
            self._failed += 1
            self._tell(
                "note", text=f"the process that imports was killed by signal {-zygote.exit_code}: another one does"
            )
            return self._new_zygote(list(zygote.modules))
        if not self._command.interpreter or (zygote.exit_code or 0) < 0:
            raise LaunchError("the process that starts ranks has ended", found=f"exit code {zygote.exit_code}")
        self._tell("note", text="the command's Python cannot import deeppart: ranks start without what is preloaded")
        self._command = Command((), (*self._command.interpreter, *self._command.arguments))
        return self._new_zygote([])

    def _prepare_next(self) -> None:
        """Once rank 0 has named what it has imported, have a zygote import the same, for the next epoch."""
        modules = read_modules(self._directory) if self._learns else None
        if modules is None:
            return
        self._learns = False
        known = {*self._zygote.modules, "__main__", *NOT_FORKED}
        self._next = self._new_zygote([*self._zygote.modules, *(name for name in modules if name not in known)])

    # --- waiting ---

    def _wait(self) -> list[Ended]:
        """Wait a moment for messages and signals; returns the ranks that have ended."""
        ended: list[Ended] = []
        with selectors.DefaultSelector() as selector:
            selector.register(self._signals, selectors.EVENT_READ)
            for each in (self._zygote, self._next):
                if each is not None and not each.has_ended:
                    selector.register(each, selectors.EVENT_READ)
            for key, _ in selector.select(_LOOK_EVERY_S):
                if key.fileobj is self._signals:
                    self._pass_on()
                elif key.fileobj is self._zygote:
                    ended += self._zygote.receive()
                elif self._next is not None:
                    self._next.receive()
        if self._next is not None and self._next.has_ended:
            self._next.close()
            self._next = None if self._next.refused is None else self._in_place_of(self._next)
        return ended

    def _pass_on(self) -> None:
        """Pass received signals on to the ranks."""
        for number in map(signal.Signals, self._signals.recv(64)):
            if number in SIGNALS:
                self._stopping = self._stopping or number
                self._tell("signal", text=number.name)
                self._zygote.signal(number)


@contextmanager
def _own_directory() -> Iterator[Path]:
    """A directory in memory that is removed afterwards; and those of this user's agents that were killed."""
    memory = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())
    for left in memory.glob(f"{_DIRECTORY}*"):
        with suppress(OSError), _locked(left):
            if left.lstat().st_uid == os.getuid():
                shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=f".{_DIRECTORY}", dir=memory))
    with _locked(made):  # before another agent can see it
        directory = made.rename(made.with_name(made.name[1:]))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a directory; raises OSError while another process does."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket from which the numbers of received signals are read."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before: dict[signal.Signals, Any] = {
        each: signal.getsignal(each) for each in SIGNALS if signal.getsignal(each) is not signal.SIG_IGN
    }
    old = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    try:
        for each in before:
            signal.signal(each, lambda number, frame: None)
        yield ours
    finally:
        signal.set_wakeup_fd(old)
        for each, handler in before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)
        ours.close()
        theirs.close()


def _free_port() -> int:
    """A port that no process listens at now; rank 0 takes it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        found: int = listener.getsockname()[1]
        return found
