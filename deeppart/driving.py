"""Driving exchanges of the background to their end, on the thread that the MPI library wants.

With ``MPI_THREAD_MULTIPLE`` that is the background thread itself. Without it the exchange is queued, and the training
thread advances it whenever it calls the library.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, TypeVar

from deeppart.comm.base import Comm, Operation, finish
from deeppart.commit import ForegroundRound

T = TypeVar("T")
#: How often a background thread looks whether the round that the training thread advances for it has been given up.
_LOOK_S = 0.1
#: How long one call of the library goes on with moving data, where only the training thread may.
_BULK_S = 5e-3


class Driver:
    """One per rank.

    Args:
        timeout: seconds to wait for other ranks, from the last time they got further.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._rounds: deque[ForegroundRound[Any]] = deque()

    def drive(self, channel: Comm, operation: Operation[T], what: str) -> T:
        """Bring an exchange to its end; called by background threads.

        Raises:
            PeerTimeoutError: nobody got any further for as long as the timeout. CommError: the channel broke earlier.
        """
        if channel.threads:
            return finish(channel, operation, what, self._timeout, background=True)
        waiting = ForegroundRound(channel, operation, what, self._timeout)
        self._rounds.append(waiting)
        while not waiting.finished.wait(_LOOK_S):
            if channel.broken is not None:  # closed: nobody will advance it any more
                waiting.cancel()
                raise channel.broken
        if waiting.error is not None:
            raise waiting.error
        return waiting.result

    @property
    def waited_s(self) -> float:
        """Seconds in which the training thread has looked in, and nothing that it advances has got further."""
        return min((waiting.waited_s for waiting in list(self._rounds)), default=0.0)

    def poll(self, patience_s: float = 0.0) -> None:
        """Advance what is queued; called by the training thread.

        Args:
            patience_s: seconds to go on while there is anything: a commit round takes several exchanges. Whatever it
                is, goes on for up to :data:`_BULK_S` as long as data is moving.
        """
        now = time.monotonic()
        deadline, bulk_deadline = now + patience_s, now + max(patience_s, _BULK_S)
        while self._rounds:
            moved = False
            for waiting in list(self._rounds):
                if waiting.advance():
                    self._rounds.remove(waiting)
                moved = moved or waiting.moved
            if time.monotonic() >= (bulk_deadline if moved else deadline):
                return
            time.sleep(0)
