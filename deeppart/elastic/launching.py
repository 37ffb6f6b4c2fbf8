"""Where the ranks of a job run, and how: on this host by torchrun's own agent, in this process."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from torch.distributed import DistNetworkError, TCPStore
from torch.distributed.elastic.multiprocessing.api import SignalException, SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from deeppart.errors import LaunchError

from .stop_request import EXIT_CODE

#: What the agent passes on to the ranks, and ends by.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
_TRIES = 10
Handler = Callable[[int, FrameType | None], object] | signal.Handlers
#: Between looks; until what was killed counts as gone: a process may hang in its file system.
_LOOK_EVERY_S, _GONE_S = 0.05, 30.0
_VARIABLE = re.compile(rb"(?:^|\0)[A-Za-z_]\w*=")
#: What is wrong with a command, and not with the node: it is not there, is none, or is too long.
_OF_COMMAND = (
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOEXEC, errno.ELOOP, errno.ENAMETOOLONG),
    *(errno.E2BIG, errno.EINVAL),
)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How the ranks of a job have ended."""

    code: int  # of the rank, or of the node, that ended first; below 0 if a signal has killed it
    rank: int | None = None  # which one it was, where that is known
    node: str | None = None  # where it was, in a job on several nodes
    by_signal: signal.Signals | None = None  # that this process got, which is why they ended

    @property
    def where(self) -> str:
        """``rank 3``, ``node2``."""
        return str(self.node) if self.rank is None else f"rank {self.rank}"


class Launcher(Protocol):
    """Starts the ranks of a job, at one place or another."""

    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that there are now; none where there is this host alone."""

    def room(self) -> int | None:
        """The most ranks that these nodes can have; None for any number."""

    def run(self, ranks: int) -> RunResult:
        """Start so many, and wait until they have ended."""

    def send(self, number: signal.Signals) -> bool:
        """From another thread: a signal to those that run; whether there are any."""


class LocalLauncher:
    """All ranks on this host, started by torchrun's agent in this process."""

    def __init__(self, command: Sequence[str], grace_s: float) -> None:
        self._command, self._grace_s = command, grace_s
        self._run_id = ""

    def nodes(self) -> tuple[str, ...]:
        """None that have names."""
        return ()

    def room(self) -> int | None:
        """For any number."""
        return None

    def run(self, ranks: int) -> RunResult:
        """As of :class:`Launcher`."""
        self._run_id = uuid.uuid4().hex
        store = _store()
        told = signal.SIGTERM
        try:
            ended = run_agent(
                ranks,
                self._command,
                self._grace_s,
                min_nodes=1,
                max_nodes=1,
                run_id=self._run_id,
                rdzv_backend="static",  # of one node: a meeting of several takes 0.3 s
                rdzv_endpoint=f"localhost:{store.port}",  # which the agent shares: no other process can take it
                rdzv_configs={"rank": 0},
                signals_to_handle=",".join(number.name for number in handled_signals()),
            )
            told = ended.by_signal or told
            return ended
        except OSError as error:
            raise LaunchError("the ranks cannot be started on this host", found=str(error)) from error
        finally:
            if ranks_of(self._run_id):
                with signals_ignored():
                    end_those_left(self._run_id, told, self._grace_s)

    def send(self, number: signal.Signals) -> bool:
        """As of :class:`Launcher`; not to the agent, which would end by it without saying how the ranks did."""
        ranks = ranks_of(self._run_id)
        send(ranks, number)
        return bool(ranks)


def _store() -> TCPStore:
    """Where the agent and the ranks of one run meet: a store of its own, since ranks find each other by the same names.

    The agent shares it by its port. Torch knows stores by their ports, also those that are gone: one that was given the
    port of such a one is not shared, and the agent would find its port taken. Trying that makes torch forget it.
    """
    for _ in range(_TRIES):
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, multi_tenant=True)
        with contextlib.suppress(DistNetworkError):
            TCPStore("localhost", store.port, is_master=True, wait_for_workers=False, multi_tenant=True)
            break
    return store


# --- the agent --------------------------------------------------------------------------------------------------------


def run_agent(ranks: int, command: Sequence[str], grace_s: float, **options: Any) -> RunResult:
    """Run the ranks of this node until they end."""
    config = LaunchConfig(
        nproc_per_node=ranks,
        max_restarts=0,
        monitor_interval=0.05,
        shutdown_timeout=max(1, int(grace_s)),
        **options,
    )
    first, *more = command
    try:
        with _one_thread_each(ranks), _time_for_others(grace_s):
            elastic_launch(config, first)(*more)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return RunResult(failure.exitcode, rank)
    except OSError as error:
        if error.filename != first or error.errno not in _OF_COMMAND:
            raise
        raise LaunchError(
            "the command of the ranks cannot be started", found=str(error), todo="name a program, and its arguments"
        ) from error
    except SignalException as told:
        return RunResult(EXIT_CODE, by_signal=signal.Signals(told.sigval))
    return RunResult(0)


@contextlib.contextmanager
def _one_thread_each(ranks: int) -> Iterator[None]:
    """As torchrun: of several ranks, each has one OpenMP thread, unless OMP_NUM_THREADS says otherwise."""
    ours = ranks > 1 and "OMP_NUM_THREADS" not in os.environ
    if ours:
        os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if ours:
            del os.environ["OMP_NUM_THREADS"]


@contextlib.contextmanager
def _time_for_others(grace_s: float) -> Iterator[None]:
    """Once a rank has left the others have their time for a checkpoint, too: one of them may make it for all.

    The agent would kill them after 30 s. It still does when a rank has failed.
    """
    close = SubprocessContext.close

    def patient(self: SubprocessContext, death_sig: signal.Signals | None = None, timeout: int | None = None) -> None:
        if timeout is None and any(failure.exitcode == EXIT_CODE for failure in self._failures.values()):
            timeout = max(1, int(grace_s))
        close(self, death_sig, *(() if timeout is None else (timeout,)))

    SubprocessContext.close = patient  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        SubprocessContext.close = close  # type: ignore[method-assign]


def ranks_of(run_id: str) -> list[int]:
    """The processes that the agent in this process has started for a run.

    Those that have written a title of theirs over their environment (``setproctitle``) are taken for such: this process
    starts no others that do.
    """
    mine = f"TORCHELASTIC_RUN_ID={run_id}".encode()
    found = []
    for task in Path("/proc/self/task").iterdir():
        for pid in _read(task / "children").split():
            environ = _read(Path("/proc") / pid.decode() / "environ")
            if mine in environ.split(b"\0") or (environ and not _VARIABLE.search(environ)):
                found.append(int(pid))
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def send(ranks: Sequence[int], number: signal.Signals) -> None:
    """A signal to processes, some of which may have ended."""
    for pid in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end_those_left(run_id: str, number: signal.Signals, grace_s: float) -> None:
    """End ranks that the agent has lost: a signal came while it was starting them, or several came while it waited."""
    send(ranks_of(run_id), number)
    until_s = time.monotonic() + grace_s
    while left := ranks_of(run_id):
        time.sleep(_LOOK_EVERY_S)
        if time.monotonic() > until_s:
            send(left, signal.SIGKILL)
        if time.monotonic() > until_s + _GONE_S:
            break


def name_code(code: int) -> str:
    """An exit code, for people."""
    if code < 0:
        known = -code in {int(each) for each in signal.Signals}
        return f"killed by {signal.Signals(-code).name}" if known else f"killed by signal {-code}"
    return f"exit code {code}" + (" (told to end)" if code == EXIT_CODE else "")


# --- signals to this process ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """In the main thread these signals are a SignalException, as they are in torchrun's agent, which puts none back.

    Those that are ignored stay so: SIGHUP under ``nohup``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with handled_by(_end, handled_signals()):
        yield


def _end(number: int, frame: FrameType | None) -> None:
    raise SignalException(f"this process got signal {number}", signal.Signals(number))


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Signals change nothing."""
    with handled_by(signal.SIG_IGN, handled_signals()):
        yield


@contextlib.contextmanager
def handled_by(handler: Handler, numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Signals have a handler for a while (in the main thread), and then the ones that they had before."""
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


def handled_signals() -> list[signal.Signals]:
    """Of :data:`SIGNALS`, those that are not ignored."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
