"""Exchanges of the background that only the training thread may advance: MPI without ``MPI_THREAD_MULTIPLE``.

Invariant
---------
* Wherever the training thread waits for other ranks, it advances all of them, of whatever session: a rank may come to
  that point only when an exchange has ended that this rank takes part in. To wait for one operation alone is to wait
  for good.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Generic, TypeVar

from deeppart.comm.base import Comm, Operation, RunningOperation

T = TypeVar("T")
#: See :class:`ForegroundRound`.
LONGEST_GAP_S = 1.0
#: Those of this process that are not over. Guarded by the interpreter: single operations on a list.
_rounds: list[ForegroundRound[Any]] = []
os.register_at_fork(after_in_child=_rounds.clear)  # a forked process may not talk to MPI


class ForegroundRound(Generic[T]):
    """An exchange that the training thread advances, now and then, when it calls the library.

    Its timeout counts the time in which the training thread looks in: at most :data:`LONGEST_GAP_S` from one look to
    the next. Training that stays away for an hour has not waited for anyone.

    Attributes:
        finished: set once it has come to its end; then either ``error`` says why it failed, or there is a ``result``.
    """

    def __init__(self, comm: Comm, operation: Operation[T], what: str, timeout: float) -> None:
        self._drive = RunningOperation(comm, operation, what, timeout)
        self._lock = threading.Lock()  # guards what follows, and the operation
        self._cancelled = False
        self._waited_s, self._looked_at = 0.0, time.monotonic()
        self.finished = threading.Event()
        self.error: BaseException | None = None

    @property
    def result(self) -> T:
        """The result of the operation, once it has finished without an error."""
        return self._drive.result

    @property
    def moved(self) -> bool:
        """True if the last :meth:`advance` got further without finishing."""
        return self._drive.moved and not self.finished.is_set()

    @property
    def waited_s(self) -> float:
        """Seconds in which the training thread has looked in, and it has not got further."""
        return self._waited_s

    def advance(self) -> bool:
        """Go on as far as possible without waiting; True when it is over."""
        if not self._lock.acquire(blocking=False):
            return False  # whoever has it advances it
        try:
            if self._cancelled:
                return True
            now = time.monotonic()
            self._waited_s += min(now - self._looked_at, LONGEST_GAP_S)
            self._looked_at = now
            try:
                if not self._drive.advance(self._waited_s):
                    if self._drive.moved:
                        self._waited_s = 0.0
                    return False
            except BaseException as error:  # for the background thread that waits for it, not for whoever advances it
                self.error = error
                self.finished.set()
                if not isinstance(error, Exception):  # an interrupt of the training thread is for both
                    raise
        finally:
            self._lock.release()
        self.finished.set()
        return True

    def cancel(self) -> None:
        """Never advance again: the level has been given up, and must not be committed after that."""
        with self._lock:
            self._cancelled = True


def put(waiting: ForegroundRound[Any]) -> None:
    """From here on the training thread advances it; called by background threads."""
    _rounds.append(waiting)


def advance_all() -> bool:
    """Advance what waits for the training thread, each a little; True if there was anything and it got further."""
    moved = False
    for waiting in list(_rounds):
        if waiting.advance():
            _rounds.remove(waiting)
        moved = moved or waiting.moved
    return moved
