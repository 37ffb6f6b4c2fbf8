"""Starting ranks with torchrun's agent: the launcher protocol, and the launcher for this host."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Protocol

from torch.distributed import DistNetworkError, TCPStore
from torch.distributed.elastic.multiprocessing.api import SignalException, SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from deeppart.errors import LaunchError

from .stop_request import EXIT_CODE

#: The agent forwards these to the ranks and ends.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
_STORE_TRIES = 10
Handler = Callable[[int, FrameType | None], object] | signal.Handlers
#: Killed processes that hang in the file system are given up after ``_GONE_S``.
_POLL_S, _GONE_S = 0.05, 30.0
_VARIABLE = re.compile(rb"(?:^|\0)[A-Za-z_]\w*=")
#: Errors of exec() that are the command's fault and not the node's.
_COMMAND_ERRNOS = (
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.ENOEXEC, errno.ELOOP, errno.ENAMETOOLONG),
    *(errno.E2BIG, errno.EINVAL),
)


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run of the ranks ended."""

    code: int  # of the first rank or node that ended; negative for a signal
    rank: int | None = None  # that ended first, if known
    node: str | None = None  # that ended first, if there are several
    by_signal: signal.Signals | None = None  # to this process, which ended the run

    @property
    def where(self) -> str:
        """``rank 3`` or ``node2``."""
        return str(self.node) if self.rank is None else f"rank {self.rank}"


class Launcher(Protocol):
    """Starts the ranks of a job."""

    def nodes(self) -> tuple[str, ...]:
        """Names of the usable nodes; empty if there is only this host."""
        return ()

    def capacity(self) -> int | None:
        """The most ranks these nodes can run; None if unlimited."""
        return None

    def run(self, ranks: int) -> RunResult:
        """Start ``ranks`` ranks and wait until they end."""

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to the running ranks, from another thread; returns whether there are any."""


class LocalLauncher(Launcher):
    """Runs all ranks on this host, with torchrun's agent in this process."""

    def __init__(self, command: Sequence[str], grace_s: float) -> None:
        self._command, self._grace_s = command, grace_s
        self._run_id = ""

    def run(self, ranks: int) -> RunResult:
        """See :meth:`Launcher.run`."""
        self._run_id = uuid.uuid4().hex
        store = _create_store()
        stop_signal = signal.SIGTERM
        try:
            # The agent shares the store, so no other process can take the port.
            assignment = Assignment(self._run_id, ranks, 0, 1, f"localhost:{store.port}", self._grace_s)
            result = run_agent(assignment, self._command, handled_signals())
            stop_signal = result.by_signal or stop_signal
            return result
        except OSError as error:
            raise LaunchError("the ranks cannot be started on this host", found=str(error)) from error
        finally:
            if find_ranks(self._run_id):
                with signals_ignored():
                    end_remaining_ranks(self._run_id, stop_signal, self._grace_s)

    def send(self, number: signal.Signals) -> bool:
        """See :meth:`Launcher.send`. The agent gets no signal: it would end without the exit codes of the ranks."""
        ranks = find_ranks(self._run_id)
        send_signal(ranks, number)
        return bool(ranks)


def _create_store() -> TCPStore:
    """A new store for each run, since ranks of different runs use the same keys.

    The agent shares it by its port. Torch keeps a table of stores by port, in which an entry can outlive its store: a
    new store on such a port is not shared, and the agent would find the port in use. Opening it a second time removes
    the stale entry.
    """
    for _ in range(_STORE_TRIES):
        store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False, multi_tenant=True)
        with contextlib.suppress(DistNetworkError):
            TCPStore("localhost", store.port, is_master=True, wait_for_workers=False, multi_tenant=True)
            break
    return store


# --- the agent --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one node does in one run of a job."""

    run: str  # unique name of the run
    ranks: int  # on this node
    node: int  # index of this node in the run
    nodes: int
    endpoint: str  # host:port of the rendezvous, on the first node
    grace_s: float  # from SIGTERM to SIGKILL
    meet_s: int = 300  # rendezvous timeout

    def as_text(self) -> str:
        """JSON for a command line."""
        return json.dumps(asdict(self))


def run_agent(assignment: Assignment, command: Sequence[str], signals: Sequence[signal.Signals]) -> RunResult:
    """Run the ranks of this node until they end, or until one of ``signals`` ends the agent and them."""
    grace_s = assignment.grace_s
    config = LaunchConfig(
        min_nodes=assignment.nodes,
        max_nodes=assignment.nodes,
        nproc_per_node=assignment.ranks,
        run_id=assignment.run,
        rdzv_backend="static",  # a dynamic rendezvous takes 0.3 s longer
        rdzv_endpoint=assignment.endpoint,
        rdzv_configs={"rank": assignment.node, "timeout": assignment.meet_s},
        max_restarts=0,
        monitor_interval=0.05,
        shutdown_timeout=max(1, int(grace_s)),
        signals_to_handle=",".join(number.name for number in signals),
    )
    program, *arguments = command
    try:
        with _openmp_threads(assignment.ranks), _grace_after_stop(grace_s):
            elastic_launch(config, program)(*arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return RunResult(failure.exitcode, rank)
    except OSError as error:
        if error.filename != program or error.errno not in _COMMAND_ERRNOS:
            raise
        raise LaunchError(
            "the command of the ranks cannot be started", found=str(error), todo="name a program, and its arguments"
        ) from error
    except SignalException as error:
        return RunResult(EXIT_CODE, by_signal=signal.Signals(error.sigval))
    return RunResult(0)


@contextlib.contextmanager
def _openmp_threads(ranks: int) -> Iterator[None]:
    """Set OMP_NUM_THREADS to 1 for several ranks unless it is set, as torchrun does."""
    unset = ranks > 1 and "OMP_NUM_THREADS" not in os.environ
    if unset:
        os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if unset:
            del os.environ["OMP_NUM_THREADS"]


@contextlib.contextmanager
def _grace_after_stop(grace_s: float) -> Iterator[None]:
    """After a rank exits with 143, give the others ``grace_s`` to finish a checkpoint; torch kills them after 30 s."""
    close = SubprocessContext.close

    def close_with_grace(
        self: SubprocessContext, death_sig: signal.Signals | None = None, timeout: int | None = None
    ) -> None:
        if timeout is None and any(failure.exitcode == EXIT_CODE for failure in self._failures.values()):
            timeout = max(1, int(grace_s))
        close(self, death_sig, *(() if timeout is None else (timeout,)))

    SubprocessContext.close = close_with_grace  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        SubprocessContext.close = close  # type: ignore[method-assign]


def find_ranks(run_id: str) -> list[int]:
    """Pids of the ranks that the agent in this process started for a run.

    A child whose environment is overwritten by a process title (``setproctitle``) counts as a rank: this process starts
    no others that have one.
    """
    variable = f"TORCHELASTIC_RUN_ID={run_id}".encode()
    found = []
    for task in Path("/proc/self/task").iterdir():
        for pid in _read(task / "children").split():
            environ = _read(Path("/proc") / pid.decode() / "environ")
            if variable in environ.split(b"\0") or (environ and not _VARIABLE.search(environ)):
                found.append(int(pid))
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""


def send_signal(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to processes that may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def end_remaining_ranks(run_id: str, number: signal.Signals, grace_s: float) -> None:
    """End ranks that the agent left behind: a signal interrupted its start or its shutdown."""
    send_signal(find_ranks(run_id), number)
    kill_at_s = time.monotonic() + grace_s
    while left := find_ranks(run_id):
        time.sleep(_POLL_S)
        if time.monotonic() > kill_at_s:
            send_signal(left, signal.SIGKILL)
        if time.monotonic() > kill_at_s + _GONE_S:
            break


def describe_exit_code(code: int) -> str:
    """``exit code 3`` or ``killed by SIGKILL``."""
    if code < 0:
        known = -code in {int(each) for each in signal.Signals}
        return f"killed by {signal.Signals(-code).name}" if known else f"killed by signal {-code}"
    return f"exit code {code}" + (" (stop requested)" if code == EXIT_CODE else "")


# --- signals to this process ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def raise_on_signals() -> Iterator[None]:
    """Raise SignalException on signals, as torchrun's agent does; it does not restore handlers. Main thread only.

    Ignored signals stay ignored, such as SIGHUP under ``nohup``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with signals_handled(_raise, handled_signals()):
        yield


def _raise(number: int, frame: FrameType | None) -> None:
    raise SignalException(f"this process got signal {number}", signal.Signals(number))


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Ignore :data:`SIGNALS` within the block."""
    with signals_handled(signal.SIG_IGN, handled_signals()):
        yield


@contextlib.contextmanager
def signals_handled(handler: Handler, numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """Install a handler within the block and restore the previous ones (main thread)."""
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


def handled_signals() -> list[signal.Signals]:
    """:data:`SIGNALS` without the ignored ones."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
