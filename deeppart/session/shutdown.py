"""How sessions end, and what happens to sessions that were not closed.

A session that is left by an exception in the ``with`` block, or dropped by the caller, finishes in the background what
it has begun: the other ranks have begun it too, and interrupting an exchange breaks its channel. The training threads
of the other ranks are notified at once. The next start in this process waits for it, and so does the end of the
process.

At the end of the process, open checkpointers are closed, so that their last checkpoint is complete; but not if the
process ends by an exception: the other ranks may then never finish it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import weakref
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import Protocol

from deeppart._threads import start_thread
from deeppart.access.hanging import hanging
from deeppart.cadence import AutoCadence
from deeppart.errors import BackgroundFailureWarning, CheckpointError, CommError, warn_now
from deeppart.pending import Pending
from deeppart.repair import Scrubber
from deeppart.save import Pipeline
from deeppart.session.preparation import Preparation
from deeppart.session.record import Session
from deeppart.session.telemetry import recorder_for
from deeppart.telemetry import Recorder

#: How long to wait for a thread that releases a session's resources, which should take no time.
_PATIENCE_S = 5.0


class Background:
    """The background of a checkpointer, and how to end it."""

    def __init__(
        self,
        session: Session,
        pipeline: Pipeline,
        scrubber: Scrubber | None,
        preparation: Preparation,
        recent: list[Pending],
    ) -> None:
        self._session, self._pipeline, self._scrubber, self._preparation = session, pipeline, scrubber, preparation
        self._recent, self._after_error = recent, False
        self._recorder: Recorder | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._releasing = threading.Lock()  # guards _is_released
        self._is_released = False

    def record(self, cadence: AutoCadence | None) -> Recorder:
        """Start the recorder; :meth:`finish` ends it."""
        self._recorder = recorder_for(self._session, self._pipeline, self._scrubber, cadence)
        return self._recorder

    def finish(self, timeout: float) -> bool:
        """Wait for the background work, twice at most ``timeout`` seconds; False if it has not ended by then."""
        if self._scrubber is not None:
            self._scrubber.close(timeout)
        idle = self._pipeline.wait_until_idle(timeout)
        if self._recorder is not None:  # now: the directory is still locked, and errors can still be reported
            self._recorder.close(failed=self._after_error)
        return idle

    def end_scrubbing(self) -> None:
        """Begin to close the scrubber, which takes part in one more sync round."""
        if self._scrubber is not None and self._process == os.getpid():
            self._scrubber.abandon()

    def release(self) -> None:
        """End the threads, if necessary in the middle of their work; then free memory, directory and channels.

        A second caller waits for the first: a thread in torch's code when the interpreter ends would terminate the
        process (``std::terminate``).
        """
        if not self._releasing.acquire(timeout=_PATIENCE_S):
            return
        try:
            if not self._is_released:
                self._is_released = True
                self._pipeline.close(0.0)
                self._preparation.close()
                self._session.drop_spares()
                self._session.close()
        finally:
            self._releasing.release()

    def leave(self, *, after_error: bool = False) -> None:
        """Let the background end by itself; returns at once. A forked process has no background."""
        if self._process != os.getpid():
            return
        self._after_error = after_error
        self.end_scrubbing()
        process_sessions.left.append(self)
        timeout = self._session.config.timeout
        with contextlib.suppress(RuntimeError):  # at the end of the process, Python starts no threads
            self._thread = start_thread(partial(self._end, timeout), "deeppart-leave", _warn_not_ended)

    def settle(self, timeout: float) -> None:
        """Wait about ``timeout`` seconds at most until it has ended; then interrupt it. Not in a forked process."""
        if self._process != os.getpid():
            return
        if self._thread is None:
            self._end(timeout)
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._end(0.0)

    @property
    def timeout(self) -> float:
        """The longest time for which any of its exchanges may wait for other ranks."""
        return self._session.config.timeout

    def _end(self, timeout: float) -> None:
        try:
            self._session.comm.abandon(CommError("the checkpointer was left on this rank without being closed"))
            try:
                over = self.finish(timeout)
            finally:
                self.release()
            if not self._after_error:
                self._warn(over)
        finally:
            with contextlib.suppress(ValueError):  # the next start may have stopped waiting for it
                process_sessions.left.remove(self)

    def _warn(self, over: bool) -> None:
        fresh = [failure for pending in self._recent for failure in pending.failures()]
        texts = [str(failure.error) for failure in fresh if failure.is_news(self._session.comm.rank)]
        steps = ", ".join(str(pending.step) for pending in self._recent if not pending.finished)
        if not over and steps:
            texts.append(f"step {steps} was not finished after the checkpointer was dropped: close() it before that")
        for text in texts:
            warn_now(text, BackgroundFailureWarning)


def _warn_not_ended(error: BaseException) -> None:
    text = f"a checkpointer that was left could not be ended: {type(error).__name__}: {error}"
    warn_now(text, BackgroundFailureWarning)


def not_finished(waited_s: float) -> CheckpointError:
    """The error of a ``close()`` that had to interrupt background work."""
    return CheckpointError(
        "the last checkpoint was not finished when the checkpointer was closed",
        found="; ".join([f"still under way after {waited_s:g} s", *hanging()]),
        todo="raise `timeout`, or wait for the checkpoint before closing",
    )


class Closable(Protocol):
    """A checkpointer."""

    def close(self) -> None:
        """Finish the background work."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish the background work if there is no error."""


class ProcessSessions:
    """The sessions of this process, for its exit handlers; the only instance is :data:`process_sessions`.

    Attributes:
        left: backgrounds of sessions that were not closed and have not ended. Only atomic list operations.
    """

    def __init__(self) -> None:
        self.left: list[Background] = []
        #: Live checkpointers, in the order in which they were made, in which ranks close them. Only atomic operations.
        self._open: weakref.WeakKeyDictionary[Closable, Background] = weakref.WeakKeyDictionary()

    def add(self, checkpointer: Closable, background: Background) -> None:
        """Register a checkpointer to be closed when the process ends, or finalizes MPI."""
        self._open[checkpointer] = background
        atexit.unregister(self.finish)
        atexit.register(
            self.finish
        )  # runs before mpi4py's handler, which was registered first: MPI must not be finalized yet
        if "mpi4py.MPI" in sys.modules:  # a script may finalize MPI before its end
            import_module("deeppart.comm.mpi").before_finalize(self.finish)

    def settle(self, timeout: float) -> None:
        """Wait together at most ``timeout`` seconds for the sessions that were left, before a new start."""
        deadline = time.monotonic() + timeout
        left = list(self.left)
        for background in left:  # all of them first: the other ranks may have left them in another order
            background.end_scrubbing()
        for background in left:
            background.settle(max(0.0, deadline - time.monotonic()))

    def finish(self) -> None:
        """Close all open checkpointers, and wait for the sessions that were left; after an error, interrupt them."""
        error = _fatal_exception()
        still_open = list(self._open.items())
        self._open.clear()
        if error is not None:
            for checkpointer, _ in still_open:
                checkpointer.__exit__(type(error), error, None)
            self.settle(0.0)
            return
        for background in (*(background for _, background in still_open), *self.left):
            background.end_scrubbing()
        with ExitStack() as stack:
            stack.callback(self._finish_left)
            for checkpointer, _ in reversed(still_open):
                stack.callback(checkpointer.close)

    def _finish_left(self) -> None:
        for background in list(self.left):
            background.settle(background.timeout)


process_sessions = ProcessSessions()


def _fatal_exception() -> BaseException | None:
    """The uncaught exception that ends the process.

    An interactive session continues after one, as do programs with a console or a test runner (``pytest``), which
    record exceptions of calls; an exception that ends the process has left its outermost frame.
    """
    error: BaseException | None = getattr(sys, "last_value", None)
    trace: TracebackType | None = getattr(sys, "last_traceback", None)
    if hasattr(sys, "ps1") or error is None or trace is None or trace.tb_frame.f_back is not None:
        return None
    return error
