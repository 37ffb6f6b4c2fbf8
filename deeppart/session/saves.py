"""The checkpoints of a session: what one call of ``checkpoint()`` does until training goes on."""

from __future__ import annotations

import time
from typing import Any

from deeppart._gc import collection_paused
from deeppart.cadence import AutoCadence
from deeppart.errors import BackgroundFailureWarning, CheckpointError, DeeppartError, raised_later, warn_of_all
from deeppart.model import Attempt
from deeppart.pending import Pending
from deeppart.save.job import Job
from deeppart.save.pipeline import Pipeline
from deeppart.save.saver import Agreed, Call, Saver
from deeppart.session.history import StepHistory
from deeppart.session.leave import pipeline_full
from deeppart.session.preparation import Preparation
from deeppart.session.record import Session

#: Without MPI_THREAD_MULTIPLE, a checkpoint spends up to this on completing earlier ones: most need a millisecond.
_ROUND_PATIENCE_S = 0.02
#: Room is waited for less long than the other ranks wait in the exchange that follows.
_ROOM_SHARE = 0.8


class Saves:
    """Makes the checkpoints of a session. Used by the training thread alone.

    Attributes:
        sequence: number of the next checkpoint in this session.
        failures: how many levels of earlier checkpoints have failed, of those that were reported.
    """

    def __init__(
        self,
        session: Session,
        saver: Saver,
        pipeline: Pipeline,
        preparation: Preparation,
        auto: AutoCadence | None,
        steps: StepHistory,
        recent: list[Pending],
    ) -> None:
        self._session, self._saver, self._pipeline, self._preparation = session, saver, pipeline, preparation
        self._auto, self._steps, self._recent = auto, steps, recent
        self.sequence = self.failures = 0

    def save(self, state: Any, step: int, *, force: bool) -> Pending | None:
        """Save a state (collective); None if nothing was due and nothing was looked at."""
        began = time.monotonic()
        due = self._due(step, force=force)
        if self._auto is not None and not due:
            return None
        refusal: DeeppartError | None = self._pipeline.failure
        if refusal is None and not (force and step == self._steps.last()):
            refusal = self._steps.refusal_of(step)
        pending = Pending(step, due, self._pipeline.poll)
        call, agreed, diverged = Call(step, self.sequence, due), None, tuple[str, ...]()
        waited = self._make_room() if due else 0.0
        try:
            with collection_paused():
                agreed = self._look_and_agree(call, state, refusal, pending)
            copying = time.monotonic()
            if agreed is None:
                self._drop_busy(pending, step)
            else:
                diverged = tuple(map(str, agreed.diverged))
                self._capture_and_submit(pending, agreed)
                if self._auto is not None:
                    self._auto.made(pending)
        finally:
            self._saver.let_go(agreed)
            agreed = None  # an error that is kept leads here
        ended = time.monotonic()
        pending.note_cost(blocked_s=ended - began, waited_s=waited, diverged=diverged)
        pending.note_cost(reduced=self._session.protection.shortfalls)
        pending.note_stage("capture", ended - copying)
        pending.note_returned()
        return pending

    def warn(self, step: int) -> None:
        """Say all that there is to say before a call changes anything: where warnings are errors, it ends here."""
        if self._steps.refusal_of(step) is None:  # which says more
            with raised_later(self._pipeline.ledger.note):
                self._steps.warn_not_restored(step)
                self._steps.warn_counting_down(step)
        self.report_failures()

    def report_failures(self) -> None:
        """Tell the caller, once, of what has failed in the background; forget what has come to its end."""
        finished = [pending for pending in self._recent if pending.finished]
        for pending in self._recent:
            for failure in pending.failures():
                self.failures += 1
                if failure.is_news(self._session.comm.rank):
                    self._pipeline.ledger.note(str(failure.error), BackgroundFailureWarning)
        self._steps.settle(finished)
        warn_of_all(self._pipeline.ledger.take_notes())

    def _due(self, step: int, *, force: bool) -> frozenset[str]:
        """Levels that a call goes to (with "auto", collective)."""
        if self._auto is not None:
            self._pipeline.poll()
            room, working = self._pipeline.has_room(), self._pipeline.working
            return self._auto.due(step, room=room, working=working, force=force)
        on = [(name, every) for name, every in self._session.protection.every.items() if every]
        return frozenset(name for name, every in on if force or self.sequence % every == 0)

    def _make_room(self) -> float:
        """Wait for the pipeline if the configuration says so; returns the seconds spent, 0 where there was room."""
        self._pipeline.poll(_ROUND_PATIENCE_S)
        if self._session.config.on_busy != "wait" or self._pipeline.has_room():
            return 0.0
        began = time.monotonic()
        self._pipeline.wait_for_room(_ROOM_SHARE * self._session.config.timeout)
        return time.monotonic() - began

    def _look_and_agree(self, call: Call, state: Any, refusal: DeeppartError | None, pending: Pending) -> Agreed | None:
        began = time.monotonic()
        flattened = refusal if refusal is not None else self._saver.flatten(state)
        agreeing = time.monotonic()
        full = bool(call.due) and not self._pipeline.has_room()
        agreed = self._saver.agree(call, flattened, busy=full)
        self._pipeline.poll(_ROUND_PATIENCE_S)  # now that all ranks are here
        pending.note_stage("flatten", agreeing - began)
        pending.note_stage("agree", time.monotonic() - agreeing)
        return agreed

    def _drop_busy(self, pending: Pending, step: int) -> None:
        if self._session.config.on_busy == "wait":
            limit_s = _ROOM_SHARE * self._session.config.timeout
            raise pipeline_full(step, limit_s, removing=self._pipeline.removing)
        pending.note_skipped()

    def _capture_and_submit(self, pending: Pending, agreed: Agreed) -> None:
        session, step, due = self._session, agreed.call.step, agreed.call.due
        attempt = Attempt(session.lineage, session.session, self.sequence, step, session.comm.size)
        self.sequence += 1
        self._recent.append(pending)
        if not due:
            return
        captured = self._saver.try_capture(agreed)
        if not isinstance(captured, CheckpointError):
            nbytes = captured.layout.nbytes
            self._preparation.a_share_comes(nbytes)
            pending.note_cost(raw_bytes=nbytes, per_rank_bytes=captured.per_rank_bytes)
        self._pipeline.submit(Job.of(attempt, due, pending, captured))
