"""Requests to end the job at its next checkpoint: of the agent of ``deeppart run``, or of ``deeppart halt``."""

from __future__ import annotations

import functools
import signal
import threading
import time
import weakref

from deeppart._threads import start_thread
from deeppart._times import seconds_of
from deeppart.config import epoch_of_run
from deeppart.progress import STOPPED, is_asked_to_leave, is_watched, time_to_end_s
from deeppart.session.record import Session
from deeppart.stopping import Signals
from deeppart.storage import Halt, Store

#: What is asked, as ranks agree on it: the most counts.
GO_ON, STOP, HALT = 0, 1, 2
#: Exit codes: of a job that may be started again, and of one that is done.
EXIT_CODES = {STOP: STOPPED, HALT: 0}
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_LOOK_EVERY_S = 2.0
#: The thread may hang in a system call on storage.
_END_S = 1.0


@functools.cache
def _signals() -> Signals | None:
    """Signals of the agent that has started this process, but those that the script handles; None without any."""
    is_main = threading.current_thread() is threading.main_thread()
    free = [each for each in _SIGNALS if signal.getsignal(each) is signal.SIG_DFL]
    if not is_watched() or not is_main or not free:
        return None
    found = Signals(free)
    found.listen()
    return found


class _HaltFile:
    """The request of ``deeppart halt`` to a run, which a thread looks for.

    Attributes:
        found: the request, or None; replaced by the thread.
        is_over: set to end the thread.
        thread: that looks.
    """

    def __init__(self, store: Store, run: str) -> None:
        self._store, self._run = store, run
        self.found: Halt | None = None
        self.is_over = threading.Event()
        self.thread = start_thread(self._look, "deeppart-halt", lambda error: None)

    def _look(self) -> None:
        while not self.is_over.wait(_LOOK_EVERY_S):
            halt = Halt.read(self._store)
            self.found = halt if halt is not None and halt.run == self._run else None


class Stops:
    """What this rank is asked. Used by the training thread alone."""

    def __init__(self, session: Session) -> None:
        epoch = epoch_of_run()
        self._signals = _signals()
        self._file: _HaltFile | None = None
        self._halt: Halt | None = None  # the request that is followed
        self._last = 0  # the checkpoint at which the job halts
        if session.comm.rank == 0:
            self._file = _HaltFile(session.persistent.store, session.session if epoch is None else epoch[0])
            weakref.finalize(self, self._file.is_over.set)

    def asked(self, number: int, safe_s: float) -> int:
        """What is asked at a checkpoint; ``safe_s``: of :class:`~deeppart.session.saves.Saves`."""
        halt = None if self._file is None else self._file.found
        if halt != self._halt:
            self._halt, self._last = halt, number + (halt.after if halt is not None else 0)
        if halt is not None:
            due_s = 0.0 if halt.before is None else seconds_of(halt.before) - time_to_end_s(safe_s)
            if number >= self._last and time.time() >= due_s:
                return HALT
        has_signal = self._signals is not None and self._signals.decides
        return STOP if has_signal or is_asked_to_leave() else GO_ON

    def close(self) -> None:
        """Look no more."""
        if self._file is not None:
            self._file.is_over.set()
            self._file.thread.join(_END_S)
