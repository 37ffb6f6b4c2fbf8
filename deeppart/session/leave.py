"""Sessions that are not closed: left by an exception in the ``with`` block, dropped by the caller, or open at the end.

The other ranks may never arrive at that point, so they are not waited for there. What the background has begun goes on:
the other ranks' backgrounds have begun it too, and an exchange that is broken off in the middle costs its channel for
good. When that is over, the directory, the memory and the channels are given back: on a thread, or, where only the
training thread may talk to MPI, at the next start.

Ranks may have left several sessions in different orders, or have only some of them open: waiting for one advances all.

At the end of the process, checkpointers that are open are closed, so that their last checkpoint is complete; not where
it ends by an exception: the other ranks may then never come to finish it.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import Protocol

from deeppart._threads import start_thread
from deeppart.access.hanging import hanging
from deeppart.cadence import AutoCadence
from deeppart.errors import BackgroundFailureWarning, CheckpointError, warn_now
from deeppart.pending import Pending
from deeppart.repair import Scrubber
from deeppart.save import Pipeline
from deeppart.session.preparation import Preparation
from deeppart.session.record import Session
from deeppart.session.wiring import recorder_for
from deeppart.telemetry import Recorder

#: How long a thread that is giving a session's things back is waited for where that should take no time; and, at the
#: end of the process, ranks that may never come, because there was an error.
_PATIENCE_S = 5.0
_PAUSE_S = 2e-3
#: Of this process, those that are not over. Guarded by the interpreter: single operations on a list.
_left: list[Background] = []


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
        self._giving_back = threading.Lock()  # guards _is_given_back
        self._is_given_back = False

    @property
    def timeout(self) -> float:
        """The timeout of the configuration, in seconds."""
        return self._session.config.timeout

    def record(self, cadence: AutoCadence | None) -> Recorder:
        """Begin to record it for those who watch the job; :meth:`finish` ends that."""
        self._recorder = recorder_for(self._session, self._pipeline, self._scrubber, cadence)
        return self._recorder

    def finish(self, timeout: float) -> bool:
        """Wait until it is over, each of two waits at most ``timeout`` seconds; False if it was not by then."""
        if self._scrubber is not None:
            self._scrubber.close(timeout)
        idle = self._pipeline.wait_until_idle(timeout)
        if self._recorder is not None:  # now: the directory is still ours, and what it could not write can be told
            self._recorder.close(failed=self._after_error)
        return idle

    def end_scrubbing(self) -> None:
        """Begin to close; it takes part in one more sync round."""
        if self._scrubber is not None and self._process == os.getpid():
            self._scrubber.abandon()

    def advance(self) -> bool:
        """Advance what only the training thread may; whether it is over, or was left to ranks that do not come."""
        if self._process != os.getpid():
            return True
        if self._thread is not None:
            return not self._thread.is_alive()
        self._pipeline.poll()
        if self._after_error and self._pipeline.driver.waited_s > _PATIENCE_S:
            return True
        return self._pipeline.idle and (self._scrubber is None or not self._scrubber.running)

    def give_back(self) -> None:
        """End the threads, in the middle of what they do if need be; then memory, directory and channels are free."""
        self._pipeline.close(0.0)
        self._preparation.close()
        self._session.drop_spares()
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

    def leave(self, *, after_error: bool = False) -> None:
        """Let it come to its end by itself; returns at once. In a forked process there is nothing of it."""
        if self._process != os.getpid():
            return
        self._after_error = after_error
        self.end_scrubbing()
        _left.append(self)
        if self._session.comm.threads:
            timeout = self._session.config.timeout
            with contextlib.suppress(RuntimeError):  # the process ends: Python starts no threads any more
                self._thread = start_thread(partial(self._end, timeout), "deeppart-leave", _tell_failure)

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
            try:
                over = self.finish(timeout)
            finally:
                self._give_back_once()
            if not self._after_error:
                self._tell(over)
        finally:
            with contextlib.suppress(ValueError):  # the next start may have given up waiting for it
                _left.remove(self)

    def _tell(self, over: bool) -> None:
        fresh = [failure for pending in self._recent for failure in pending.failures()]
        texts = [str(failure.error) for failure in fresh if failure.is_news(self._session.comm.rank)]
        steps = ", ".join(str(pending.step) for pending in self._recent if not pending.finished)
        if not over and steps:
            texts.append(f"step {steps} was not finished after the checkpointer was dropped: close() it before that")
        for text in texts:
            warn_now(text, BackgroundFailureWarning)


def _tell_failure(error: BaseException) -> None:
    text = f"a checkpointer that was left could not be ended: {type(error).__name__}: {error}"
    warn_now(text, BackgroundFailureWarning)


def not_finished(waited_s: float) -> CheckpointError:
    """The error of a ``close()`` after which something was broken off."""
    return CheckpointError(
        "the last checkpoint was not finished when the checkpointer was closed",
        found="; ".join([f"still under way after {waited_s:g} s", *hanging()]),
        todo="raise `timeout`, or wait for the checkpoint before closing",
    )


def _wait_together(backgrounds: Sequence[Background], timeout: float) -> None:
    """Advance them all until all are over, or for ``timeout`` seconds. Those that are not closed yet scrub no more."""
    deadline = time.monotonic() + timeout
    for background in backgrounds:
        background.end_scrubbing()
    waiting = list(backgrounds)
    while waiting and time.monotonic() < deadline:
        waiting = [background for background in waiting if not background.advance()]
        if waiting:
            time.sleep(_PAUSE_S)


def settle(timeout: float) -> None:
    """Wait for the sessions that this process has left, together at most ``timeout`` seconds: a start comes now."""
    deadline = time.monotonic() + timeout
    backgrounds = list(_left)
    _wait_together(backgrounds, timeout)
    for background in backgrounds:
        background.settle(max(0.0, deadline - time.monotonic()))


def _finish_left() -> None:
    """Wait for what those that were left have begun, as long as any of them has to wait for other ranks at most."""
    backgrounds = list(_left)
    _wait_together(backgrounds, max((background.timeout for background in backgrounds), default=0.0))
    for background in backgrounds:
        background.settle(0.0)


def break_off() -> None:
    """The process ends: nothing may talk to MPI from here on."""
    settle(0.0)


# --- the end of the process ---


class Closable(Protocol):
    """A checkpointer."""

    def close(self) -> None:
        """Finish what is in the background."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish it only if there is no error."""


#: Those that are alive, by number: ranks close them in the order in which they were made. Guarded by the interpreter.
_open: weakref.WeakValueDictionary[int, Closable] = weakref.WeakValueDictionary()
_backgrounds: weakref.WeakValueDictionary[int, Background] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def close_at_the_end(checkpointer: Closable, background: Background) -> None:
    """See that a checkpointer is closed when the process ends, or MPI is finalized in it."""
    number = next(_numbers)
    _open[number], _backgrounds[number] = checkpointer, background
    atexit.unregister(finish)
    atexit.register(finish)  # runs before the handler of mpi4py, which was there first: MPI must still be there
    if "mpi4py.MPI" in sys.modules:  # a script may finalize MPI itself, before its end
        import_module("deeppart.comm.mpi").before_finalize(finish)


def finish() -> None:
    """Close all that are open, and wait for those that were left; after an error, break them off."""
    error = _error_that_ends_it()
    numbers = sorted(_open)
    still_open = [checkpointer for number in numbers if (checkpointer := _open.get(number)) is not None]
    running = [background for number in numbers if (background := _backgrounds.get(number)) is not None]
    _open.clear()
    if error is not None:
        for checkpointer in still_open:
            checkpointer.__exit__(type(error), error, None)
        break_off()
        return
    running = [*dict.fromkeys([*running, *_left])]
    if len(running) > 1:  # other ranks may have left some of them, in another order
        _wait_together(running, max(background.timeout for background in running))
    with ExitStack() as stack:
        stack.callback(_finish_left)
        for checkpointer in reversed(still_open):
            stack.callback(checkpointer.close)


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
