"""Where the ranks of a job run: what :mod:`.running` asks of a place, and this host."""

from __future__ import annotations

import contextlib
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Protocol

from torch.distributed import DistNetworkError, TCPStore
from torch.distributed.elastic.multiprocessing.api import SignalException

from deeppart.errors import LaunchError

from .agent import Ended, end_those_left, ranks_of, run_agent, send

#: What the agent passes on to the ranks, and ends by.
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
_TRIES = 10
Handler = Callable[[int, FrameType | None], object] | signal.Handlers


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


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """In the main thread these signals are a SignalException, as they are in torchrun's agent, which puts none back.

    Those that are ignored stay so: SIGHUP under ``nohup``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with handled_by(_end, heard()):
        yield


def heard() -> list[signal.Signals]:
    """Of :data:`SIGNALS`, those that are not ignored."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def _end(number: int, frame: FrameType | None) -> None:
    raise SignalException(f"this process got signal {number}", signal.Signals(number))


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """Signals change nothing."""
    with handled_by(signal.SIG_IGN, heard()):
        yield


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


class Launcher(Protocol):
    """Starts the ranks of a job, at one place or another."""

    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes that there are now; none where there is this host alone."""
        ...

    def room(self) -> int | None:
        """The most ranks that these nodes can have; None for any number."""
        ...

    def run(self, ranks: int) -> Ended:
        """Start so many, and wait until they have ended."""
        ...

    def send(self, number: signal.Signals) -> bool:
        """From another thread: a signal to those that run; whether there are any."""
        ...


class OnThisHost:
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

    def run(self, ranks: int) -> Ended:
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
                rdzv_endpoint=f"localhost:{store.port}",  # which the agent shares: nobody else can take it
                rdzv_configs={"rank": 0},
                signals_to_handle=",".join(number.name for number in heard()),
            )
            told = ended.told or told
            return ended
        except OSError as error:
            raise LaunchError("the ranks cannot be started on this host", found=str(error)) from error
        finally:
            if ranks_of(self._run_id):
                with deaf():
                    end_those_left(self._run_id, told, self._grace_s)

    def send(self, number: signal.Signals) -> bool:
        """As of :class:`Launcher`; not to the agent, which would end by it without saying how the ranks did."""
        ranks = ranks_of(self._run_id)
        send(ranks, number)
        return bool(ranks)
