"""How sessions end, and what of them is left when they were not closed.

A session that is left by an exception in the ``with`` block, or dropped by the caller, goes on in the background until
what it has begun is over: the other ranks have begun it too, and an exchange that is broken off in the middle costs its
channel. The training threads of the other ranks hear at once that this one does not come any more. The next start in
this process waits for it, and so does the end of the process.

At the end of the process, checkpointers that are open are closed, so that their last checkpoint is complete; not where
it ends by an exception: the other ranks may then never come to finish it.
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

#: How long a thread that is releasing what a session has is waited for where that should take no time.
_PATIENCE_S = 5.0


class Background:
    """The running parts of a checkpointer, and how to end them."""

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
        """Begin to record it for those who watch the job; :meth:`finish` ends that."""
        self._recorder = recorder_for(self._session, self._pipeline, self._scrubber, cadence)
        return self._recorder

    def finish(self, timeout: float) -> bool:
        """Wait until it is over, each of two waits at most ``timeout`` seconds; False if it was not by then."""
        if self._scrubber is not None:
            self._scrubber.close(timeout)
        idle = self._pipeline.wait_until_idle(timeout)
        if self._recorder is not None:  # now: the directory is still locked, and its failures can still be reported
            self._recorder.close(failed=self._after_error)
        return idle

    def end_scrubbing(self) -> None:
        """Begin to close; it takes part in one more sync round."""
        if self._scrubber is not None and self._process == os.getpid():
            self._scrubber.abandon()

    def release(self) -> None:
        """End the threads, in the middle of what they do if need be; then memory, directory and channels are free.

        A second caller waits for the first: a thread that is in torch's code when the interpreter ends takes the
        process down with it (``std::terminate``).
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
        """Let it come to its end by itself; returns at once. In a forked process there is nothing of it."""
        if self._process != os.getpid():
            return
        self._after_error = after_error
        self.end_scrubbing()
        process_sessions.left.append(self)
        timeout = self._session.config.timeout
        with contextlib.suppress(RuntimeError):  # the process ends: Python starts no threads any more
            self._thread = start_thread(partial(self._end, timeout), "deeppart-leave", _warn_not_ended)

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

    @property
    def timeout(self) -> float:
        """As long as any of its exchanges has to wait for other ranks at most."""
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
            with contextlib.suppress(ValueError):  # the next start may have given up waiting for it
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
    """The error of a ``close()`` after which something was broken off."""
    return CheckpointError(
        "the last checkpoint was not finished when the checkpointer was closed",
        found="; ".join([f"still under way after {waited_s:g} s", *hanging()]),
        todo="raise `timeout`, or wait for the checkpoint before closing",
    )


class Closable(Protocol):
    """A checkpointer."""

    def close(self) -> None:
        """Finish what is in the background."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish it only if there is no error."""


class ProcessSessions:
    """Process-wide, for the handlers of its end: there is one, :data:`process_sessions`.

    Attributes:
        left: backgrounds of sessions that were not closed, as long as they are not over. Single operations on a list.
    """

    def __init__(self) -> None:
        self.left: list[Background] = []
        #: Checkpointers that are alive: ranks close them in the order in which they were made. Single operations.
        self._open: weakref.WeakKeyDictionary[Closable, Background] = weakref.WeakKeyDictionary()

    def add(self, checkpointer: Closable, background: Background) -> None:
        """See that a checkpointer is closed when the process ends, or MPI is finalized in it."""
        self._open[checkpointer] = background
        atexit.unregister(self.finish)
        atexit.register(
            self.finish
        )  # runs before the handler of mpi4py, which was there first: MPI must still be there
        if "mpi4py.MPI" in sys.modules:  # a script may finalize MPI itself, before its end
            import_module("deeppart.comm.mpi").before_finalize(self.finish)

    def settle(self, timeout: float) -> None:
        """Wait for the sessions that were left, together at most ``timeout`` seconds: a start comes now."""
        deadline = time.monotonic() + timeout
        left = list(self.left)
        for background in left:  # all first: the other ranks may have left them in another order
            background.end_scrubbing()
        for background in left:
            background.settle(max(0.0, deadline - time.monotonic()))

    def finish(self) -> None:
        """Close all that are open, and wait for those that were left; after an error, break them off."""
        error = _error_that_ends_it()
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


def _error_that_ends_it() -> BaseException | None:
    """The uncaught exception.

    An interactive session goes on after one. So does a program with a console in it, or with tests (``pytest``): what
    they note there has come from a call, while what ends the process has gone through its outermost frame.
    """
    error: BaseException | None = getattr(sys, "last_value", None)
    trace: TracebackType | None = getattr(sys, "last_traceback", None)
    if hasattr(sys, "ps1") or error is None or trace is None or trace.tb_frame.f_back is not None:
        return None
    return error
