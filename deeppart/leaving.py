"""Sessions that are left without being closed: by an exception in the ``with`` block, or dropped by the caller.

The other ranks may never arrive at that point, so nobody waits for them there. What the background has begun goes on:
the other ranks' backgrounds have begun it too, and an exchange that is broken off in the middle costs its channel for
good. When that is over, the directory, the memory and the channels are given back: on a thread, or, where only the
training thread may talk to MPI, at the next start.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

from deeppart.pipeline import Pipeline
from deeppart.scrubbing import Scrubber
from deeppart.session import Session
from deeppart.state.capture import Staging

#: How long a thread that is giving a session's things back is waited for where that should take no time.
_PATIENCE_S = 5.0
#: Of this process, those that are not over. Guarded by the interpreter: single operations on a list.
_left: list[Background] = []


class Background:
    """What a checkpointer has running, and how that ends.

    Args:
        session, pipeline, scrubber, staging: of the checkpointer.
    """

    def __init__(self, session: Session, pipeline: Pipeline, scrubber: Scrubber | None, staging: Staging) -> None:
        self._session, self._pipeline, self._scrubber, self._staging = session, pipeline, scrubber, staging
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._giving_back = threading.Lock()  # guards _is_given_back
        self._is_given_back = False

    @property
    def timeout(self) -> float:
        """As of the configuration, in seconds."""
        return self._session.config.timeout

    def finish(self, timeout: float) -> bool:
        """Wait until it is over, each of two waits at most ``timeout`` seconds; False if it was not by then."""
        if self._scrubber is not None:
            self._scrubber.close(timeout)
        return self._pipeline.drain(timeout)

    def give_back(self) -> None:
        """End the threads, in the middle of what they do if need be; then memory, directory and channels are free."""
        self._pipeline.close(0.0)
        self._session.drop_spares()
        self._staging.release()
        self._session.close()

    def _give_back_once(self) -> None:
        """Whoever comes second waits for the first.

        A thread that is in torch's code when the interpreter ends takes the process down with it (``std::terminate``).
        """
        if not self._giving_back.acquire(timeout=_PATIENCE_S):
            return
        try:
            if not self._is_given_back:
                self._is_given_back = True
                self.give_back()
        finally:
            self._giving_back.release()

    def leave(self) -> None:
        """Let it come to its end by itself; returns at once. In a forked process there is nothing of it."""
        if self._process != os.getpid():
            return
        if self._scrubber is not None:
            self._scrubber.abandon()
        _left.append(self)
        if self._session.comm.threads:
            timeout = self._session.config.timeout
            self._thread = threading.Thread(target=self._end, args=(timeout,), name="deeppart-leave", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the process ends: Python starts no threads any more
                self._thread = None

    def settle(self, timeout: float) -> None:
        """Wait until it is over, about ``timeout`` seconds at most; then it is broken off. Not in a forked process."""
        if self._process != os.getpid():
            return
        if self._thread is None:
            self._end(timeout)
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._end(0.0)

    def _end(self, timeout: float) -> None:
        try:
            self.finish(timeout)
            self._give_back_once()
        finally:
            with contextlib.suppress(ValueError):  # the next start may have given up waiting for it
                _left.remove(self)


def settle(timeout: float) -> None:
    """Wait for the sessions that this process has left, together at most ``timeout`` seconds: a start comes now."""
    deadline = time.monotonic() + timeout
    for background in list(_left):
        background.settle(max(0.0, deadline - time.monotonic()))


def finish() -> None:
    """Wait for what they have begun, as long as each has to wait for other ranks at most."""
    for background in list(_left):
        background.settle(background.timeout)


def break_off() -> None:
    """The process ends: nothing may talk to MPI from here on."""
    settle(0.0)
