"""Driving exchanges of the background to their end, on the thread that the MPI library wants.

With ``MPI_THREAD_MULTIPLE`` that is the background thread itself. Without it the exchange is queued, and the training
thread advances it whenever it calls the library.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar

from deeppart.comm.base import Comm, Operation
from deeppart.comm.queued import ForegroundRound, advance_all, put
from deeppart.comm.waiting import finish
from deeppart.errors import CommError, DeeppartError

T = TypeVar("T")
#: How often a background thread looks whether the round that the training thread advances for it has been given up.
_LOOK_S = 0.1
#: How long one call of the library goes on with moving data, where only the training thread may.
_BULK_S = 5e-3


class Driver:
    """One per rank and session."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        #: Of this session, in the background. Guarded by the interpreter: single operations on a list.
        self._rounds: list[ForegroundRound[Any]] = []

    def drive(self, channel: Comm, operation: Operation[T], what: str) -> T:
        """Bring an exchange to its end; called by background threads."""
        try:
            return self._drive(channel, operation, what)
        except BaseException as error:
            if isinstance(error, CommError) or not isinstance(error, DeeppartError):
                # In the middle: what the others say next would be taken for something else.
                channel.abandon(CommError(f"{what}: broken off on this rank", found=repr(error)))
            raise

    def _drive(self, channel: Comm, operation: Operation[T], what: str) -> T:
        if channel.threads:
            return finish(channel, operation, what, self._timeout, background=True)
        waiting = ForegroundRound(channel, operation, what, self._timeout)
        self._rounds.append(waiting)
        try:
            put(waiting)
            while not waiting.finished.wait(_LOOK_S):
                if channel.broken is not None:  # closed: nobody will advance it any more
                    waiting.cancel()
                    raise channel.broken
        finally:
            self._rounds.remove(waiting)
        if waiting.error is not None:
            raise waiting.error
        return waiting.result

    @property
    def waited_s(self) -> float:
        """Seconds in which the training thread has looked in, and nothing of this session has got further."""
        return min((waiting.waited_s for waiting in list(self._rounds)), default=0.0)

    def poll(self, patience_s: float = 0.0) -> None:
        """Advance what is queued, of all sessions; called by the training thread."""
        now = time.monotonic()
        deadline, bulk_deadline = now + patience_s, now + max(patience_s, _BULK_S)
        while True:
            moved = advance_all()
            if all(waiting.finished.is_set() for waiting in list(self._rounds)):
                return
            if time.monotonic() >= (bulk_deadline if moved else deadline):
                return
            time.sleep(0)
