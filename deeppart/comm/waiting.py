"""Waiting for the ends of operations, in the training thread and in the background.

With ``MPI_THREAD_MULTIPLE`` each thread drives its operations itself. Without it exchanges of the background are
queued, and the training thread advances them whenever it calls the library.

Invariant
---------
* Wherever the training thread waits for other ranks, it advances all that is queued, of whatever session: a rank may
  come to that point only when an exchange has ended that this rank takes part in. To wait for one operation alone is to
  wait for good.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Generic, TypeVar

from deeppart.comm.base import Comm, Operation, RunningOperation, rank_names
from deeppart.errors import CommError, DeeppartError, WaitingNotice, warn_now

T = TypeVar("T")
#: A wait of the training thread first polls without sleeping: a steady-state exchange takes microseconds, and the MPI
#: library moves bulk data only while it is polled. Other processes get the core in between.
POLL_S = 20e-3
#: Then, and in background threads from the start, it sleeps ever longer between polls.
SLEEP_FIRST_S = 20e-6
SLEEP_MOST_S = 2e-3
#: After so long the training thread says whom it waits for, once: hours before the timeout, where that is long.
NOTICE_S = 30.0
#: How often a background thread looks whether the round that the training thread advances for it has been given up.
_LOOK_S = 0.1
#: How long one call of the library goes on with moving data, where only the training thread may.
_BULK_S = 5e-3
#: See :class:`ForegroundRound`.
LONGEST_GAP_S = 1.0
#: Those of this process that are not over. Guarded by the interpreter: single operations on a list.
_rounds: list[ForegroundRound[Any]] = []
os.register_at_fork(after_in_child=_rounds.clear)  # a forked process may not talk to MPI


def finish(comm: Comm, operation: Operation[T], what: str, timeout: float, *, background: bool = False) -> T:
    """Drive an operation to its end and return its result."""
    began = time.monotonic()
    drive = RunningOperation(comm, operation, what, timeout)
    polling, sleep_s = not background, SLEEP_FIRST_S
    waited, is_told = 0.0, background
    while not drive.advance(waited):
        moved = drive.moved
        if not background:
            moved = advance_all() or moved
        now = time.monotonic()
        if drive.moved:
            began, sleep_s = now, SLEEP_FIRST_S
        waited = now - began
        if waited > NOTICE_S and not is_told:
            is_told = True
            _tell(comm, what, waited, timeout)
        if polling:
            polling = waited < POLL_S
            time.sleep(0)
        elif not moved:
            time.sleep(sleep_s)
            sleep_s = min(SLEEP_MOST_S, sleep_s * 1.5)
    return drive.result


def _tell(comm: Comm, what: str, waited_s: float, timeout: float) -> None:
    """Say who is waited for; of all the ranks that wait, one does."""
    heard = comm.heard()
    missing = set(range(comm.size)) - heard
    if missing and comm.rank == min(heard):
        warn_now(
            f"{what}: waiting for {rank_names(sorted(missing))} for {waited_s:.0f} s, up to {timeout:g} s. Every rank "
            "has to make this call: is it under `if rank == 0`, or does a rank hang elsewhere?",
            WaitingNotice,
        )


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
            _rounds.append(waiting)
            while not waiting.finished.wait(_LOOK_S):
                if channel.broken is not None:  # closed: it will not be advanced any more
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
            return False  # the thread that has it advances it
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
            except (
                BaseException
            ) as error:  # for the background thread that waits for it, not for the one that advances it
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


def advance_all() -> bool:
    """Advance what waits for the training thread, each a little; True if there was anything and it got further."""
    moved = False
    for waiting in list(_rounds):
        if waiting.advance():
            _rounds.remove(waiting)
        moved = moved or waiting.moved
    return moved
