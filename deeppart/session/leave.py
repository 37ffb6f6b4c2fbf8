"""Sessions that are left without being closed: by an exception in the ``with`` block, or dropped by the caller.

The other ranks may never arrive at that point, so nobody waits for them there. What the background has begun goes on:
the other ranks' backgrounds have begun it too, and an exchange that is broken off in the middle costs its channel for
good. When that is over, the directory, the memory and the channels are given back: on a thread, or, where only the
training thread may talk to MPI, at the next start.

Ranks may have left several sessions in different orders, or have only some of them open: whoever waits for one advances
them all.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from functools import partial

from deeppart._threads import start_thread
from deeppart.access.hanging import hanging
from deeppart.cadence import AutoCadence
from deeppart.errors import BackgroundFailureWarning, CheckpointError, warn_now
from deeppart.pending import Pending
from deeppart.repair.scrub import Scrubber
from deeppart.save.pipeline import Pipeline
from deeppart.session.preparation import Preparation
from deeppart.session.record import Session
from deeppart.session.recording import recorder_for
from deeppart.telemetry.recorder import Recorder

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
        """Begin to record it for whoever looks on; :meth:`finish` ends that."""
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


def pipeline_full(step: int, waited_s: float, *, removing: bool) -> CheckpointError:
    """The error of a call for which there was no room."""
    old = ["old steps are being removed from persistent_dir"] if removing else []
    return CheckpointError(
        f"checkpoint(step={step}): an earlier checkpoint is still being written",
        found="; ".join([f"the pipeline was full for {waited_s:g} s", *old, *hanging()]),
        todo="checkpoint less often, raise `timeout` or `flush_bandwidth`, or set on_busy='skip'",
    )


def not_finished(waited_s: float) -> CheckpointError:
    """The error of a ``close()`` after which something was broken off."""
    return CheckpointError(
        "the last checkpoint was not finished when the checkpointer was closed",
        found="; ".join([f"still under way after {waited_s:g} s", *hanging()]),
        todo="raise `timeout`, or wait for the checkpoint before closing",
    )


def wait_together(backgrounds: Sequence[Background], timeout: float) -> None:
    """Advance them all until all are over, or for ``timeout`` seconds. Those that are not closed yet scrub no more."""
    deadline = time.monotonic() + timeout
    for background in backgrounds:
        background.end_scrubbing()
    waiting = list(backgrounds)
    while waiting and time.monotonic() < deadline:
        waiting = [background for background in waiting if not background.advance()]
        if waiting:
            time.sleep(_PAUSE_S)


def left() -> list[Background]:
    """Of this process, those that are not over."""
    return list(_left)


def settle(timeout: float) -> None:
    """Wait for the sessions that this process has left, together at most ``timeout`` seconds: a start comes now."""
    deadline = time.monotonic() + timeout
    backgrounds = left()
    wait_together(backgrounds, timeout)
    for background in backgrounds:
        background.settle(max(0.0, deadline - time.monotonic()))


def finish() -> None:
    """Wait for what they have begun, as long as any of them has to wait for other ranks at most."""
    backgrounds = left()
    wait_together(backgrounds, max((background.timeout for background in backgrounds), default=0.0))
    for background in backgrounds:
        background.settle(0.0)


def break_off() -> None:
    """The process ends: nothing may talk to MPI from here on."""
    settle(0.0)
