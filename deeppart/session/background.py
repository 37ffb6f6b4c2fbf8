"""The background of an open session: its threads, and how they end.

A session that is left by an exception in the ``with`` block, or dropped by the caller, finishes in the background what
it has begun: the other ranks have begun it too, and interrupting an exchange breaks its channel. The training threads
of the other ranks are notified at once. The next start in this process waits for it, and so does the end of the
process.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import replace
from functools import partial

from deeppart._threads import start_thread
from deeppart.errors import BackgroundFailureWarning, CommError, warn_now
from deeppart.model import Attempt, Level
from deeppart.nodes import Arena
from deeppart.pending import Pending
from deeppart.repair import Ground, Scrubber
from deeppart.save import (
    CallNotes,
    Compressing,
    Incremental,
    Keeping,
    Pipeline,
    Protector,
    RankStorage,
    Retention,
    SuspicionWriter,
    lower_priority,
)
from deeppart.session.preparation import Preparation
from deeppart.session.record import Session
from deeppart.session.shutdown import process_sessions
from deeppart.session.telemetry import cadence_for, recorder_for
from deeppart.state.capture import Staging
from deeppart.storage import RateLimit

#: How long to wait for a record of suspect steps to be written: the caller may end the job after its warning.
SUSPICION_PATIENCE_S = 30.0
#: How long to wait for a thread that releases a session's resources, which should take no time.
_PATIENCE_S = 5.0


class Background:
    """The background of a checkpointer, started.

    Attributes:
        pipeline, retention, keeping, scrubber, suspicions, preparation, auto, recorder: its parts; ``scrubber`` is None
            if scrubbing is off, ``auto`` without ``every="auto"``.
        staging, arena: memory for shares, and for exchanges between nodes.
        recent: checkpoints whose end has not been reported yet.
    """

    def __init__(self, session: Session, call_notes: CallNotes) -> None:
        config, comm, memory = session.config, session.comm, session.memory
        self._session, self._after_error = session, False
        self.staging, self.arena = Staging() if memory is None else Staging(memory.reserve), Arena()
        self.preparation = Preparation(self.staging, memory)
        self.recent: list[Pending] = []
        levels = session.node_levels if session.leads_directory else {}
        self.retention = Retention(levels, config.keep, session.protection.every, session.earlier)
        self.keeping = _keeping(session, call_notes)
        self.pipeline = Pipeline(
            session.channels,
            RankStorage(comm.rank, session.node_levels.get(Level.LOCAL), session.persistent, session.owner, memory),
            Compressing(config.compression, session.processors, lower_priority, session.persistent.signing),
            Incremental(on=config.incremental),
            self.retention,
            self.keeping,
            Protector(comm.rank, session.protection, session.node_levels, session.limit),
            call_notes,
            config,
        )
        job = Attempt(session.lineage, session.session, 0, 0, comm.size)
        patience_s = min(SUSPICION_PATIENCE_S, config.timeout / 4)  # the other ranks are waiting for rank 0
        self.suspicions = SuspicionWriter(session.persistent.store, job, patience_s, call_notes)
        self.scrubber = _scrubber(session, self.pipeline)
        self.auto = cadence_for(session)
        self.recorder = recorder_for(session, self.pipeline, self.scrubber, self.auto)
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._releasing = threading.Lock()  # guards _is_released
        self._is_released = False

    def finish(self, timeout: float) -> bool:
        """Wait for the background work, twice at most ``timeout`` seconds; False if it has not ended by then."""
        if self.scrubber is not None:
            self.scrubber.close(timeout)
        idle = self.pipeline.wait_until_idle(timeout)
        self.recorder.close(failed=self._after_error)  # now: the directory is locked, and errors can still be reported
        return idle

    def end_scrubbing(self) -> None:
        """Begin to close the scrubber, which takes part in one more sync round."""
        if self.scrubber is not None and self._process == os.getpid():
            self.scrubber.abandon()

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
                self.pipeline.close(0.0)
                self.preparation.close()
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
        fresh = [failure for pending in self.recent for failure in pending.failures()]
        texts = [str(failure.error) for failure in fresh if failure.is_news(self._session.comm.rank)]
        steps = ", ".join(str(pending.step) for pending in self.recent if not pending.finished)
        if not over and steps:
            texts.append(f"step {steps} was not finished after the checkpointer was dropped: close() it before that")
        for text in texts:
            warn_now(text, BackgroundFailureWarning)


def _warn_not_ended(error: BaseException) -> None:
    text = f"a checkpointer that was left could not be ended: {type(error).__name__}: {error}"
    warn_now(text, BackgroundFailureWarning)


def _keeping(session: Session, call_notes: CallNotes) -> Keeping:
    """A ``keep`` that was found in a file rather than passed removes no steps of earlier runs."""
    config, earlier = session.config, session.earlier[Level.PERSISTENT]
    if "keep" in config.from_file:
        earlier = earlier - session.committed
    keep = config.keep[Level.PERSISTENT]
    return Keeping(session.persistent, keep, earlier, session.owner, call_notes, config.timeout)


def _scrubber(session: Session, pipeline: Pipeline) -> Scrubber | None:
    """The scrubber, started; None if scrubbing is off."""
    bandwidth, rank = session.config.scrub_bandwidth, session.comm.rank
    if "scrub" not in session.channels or bandwidth is None:
        return None
    mates = session.topology.sharing_directory(rank)
    directory = session.topology.directories[rank]
    ground = Ground(
        directory=session.roots.at(directory) if directory else None,
        share=mates.index(rank),
        shares=len(mates),
        leads=session.leads_directory,
        lineage=session.lineage,
        rate=RateLimit(bandwidth / len(session.topology.mates(rank))),
    )
    ranks = replace(session.ranks(), comm=session.channels["scrub"], doing="scrubbing", background=True, threads=1)
    return Scrubber(
        ranks,
        pipeline,
        ground,
        session.protection,
        session.node_levels,
        session.persistent,
        session.limit,
    )
