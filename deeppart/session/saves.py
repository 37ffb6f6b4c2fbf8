"""The checkpoints of a session: one ``checkpoint()`` call until it returns, and which step numbers are used."""

from __future__ import annotations

import contextlib
import time
from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

from deeppart._gc import collection_paused
from deeppart.access.hanging import hanging
from deeppart.errors import (
    BackgroundFailureWarning,
    CheckpointError,
    DeeppartError,
    DeeppartWarning,
    StepExistsError,
    raised_later,
    warn_caller,
    warn_of_all,
)
from deeppart.model import LEVELS, Attempt, Level, show_bytes
from deeppart.pending import DONE, FAILED, Pending
from deeppart.save import Agreed, Call, Job, Saver
from deeppart.session.background import Background
from deeppart.session.record import Session
from deeppart.session.stops import GO_ON, Stops

#: The share of the timeout to wait for room: less than the other ranks wait in the exchange that follows.
_ROOM_SHARE = 0.8


class Saves:
    """Makes the checkpoints of a session. Used by the training thread alone.

    Attributes:
        sequence: number of the next checkpoint in this session.
        failures: how many levels of earlier checkpoints have failed, as far as reported.
        safe_s: how long a checkpoint took last at the slowest level; 0.0 before that.
        fails: whether the last checkpoint that has ended at the slowest level has failed there.
        stop: what the ranks are asked to do after the last call (:mod:`deeppart.session.stops`).
    """

    def __init__(
        self, session: Session, saver: Saver, background: Background, steps: StepHistory, stops: Stops
    ) -> None:
        self._session, self._saver, self._steps, self._stops = session, saver, steps, stops
        self._pipeline, self._auto, self._recent = background.pipeline, background.auto, background.recent
        self.sequence = self.failures = 0
        self.safe_s, self.fails, self.stop = 0.0, False, GO_ON
        self._took, self._ended = dict[str, float](), dict[str, str]()  # by each level, the last time

    def save(self, state: Any, step: int, *, force: bool) -> Pending | None:
        """Save a state (collective); None if no level was due, and the state was not compared."""
        began = time.monotonic()
        asked = self._stops.asked(self.sequence, self.safe_s)
        due = self._due(step, force=force, is_last=asked != GO_ON)
        if self._auto is not None and not due:
            return None
        refusal: DeeppartError | None = self._pipeline.failure
        if refusal is None and not (force and step == self._steps.last()):
            refusal = self._steps.refusal_of(step)
        pending = Pending(step, due)
        call, agreed, diverged = Call(step, self.sequence, due), None, tuple[str, ...]()
        waited = self._make_room() if due else 0.0
        try:
            with collection_paused():
                agreed = self._agree(call, state, refusal, pending, asked)
            self.stop = self._saver.stop
            copying = time.monotonic()
            if agreed is None:
                self._drop_busy(pending, step)
            else:
                diverged = tuple(map(str, agreed.diverged))
                self._capture_and_submit(pending, agreed)
                if self._auto is not None:
                    self._auto.made(pending)
        finally:
            self._saver.release()
            agreed = None  # an error that is kept would reference it
        ended = time.monotonic()
        reduced = self._session.protection.shortfalls
        pending.note(blocked_s=ended - began, waited_s=waited, diverged=diverged, reduced=reduced)
        pending.note_stage("capture", ended - copying)
        pending.note_returned()
        return pending

    def go_on(self) -> None:
        """The checkpoint after which the ranks were to end has failed: report it; they are asked again."""
        self.stop = GO_ON
        self.report_failures()

    def is_at_all_levels(self, pending: Pending) -> bool:
        """Whether a checkpoint goes to all levels that are on."""
        return all(name in pending.levels for name, every in self._session.protection.every.items() if every)

    def warn(self, step: int) -> None:
        """Give all warnings before a call changes anything: if warnings are errors, the call ends here."""
        if self._steps.refusal_of(step) is None:  # otherwise the refusal says more
            with raised_later(self._pipeline.call_notes.note):
                self._steps.warn_not_restored(step)
                self._steps.warn_counting_down(step)
        self.report_failures()

    def report_failures(self) -> None:
        """Warn once of failures in the background, and forget finished checkpoints."""
        finished = [pending for pending in self._recent if pending.finished]
        for pending in finished:
            levels = pending.report.levels.items()
            self._took |= {name: level.seconds for name, level in levels if level.seconds}
            self._ended |= {name: level.state for name, level in levels if level.state in (DONE, FAILED)}
        self.safe_s = max(self._took.values(), default=0.0)  # the last checkpoint of a job goes to all of them
        self.fails = bool(self._ended) and self._ended[max(self._ended, key=LEVELS.index)] == FAILED
        for pending in self._recent:
            for failure in pending.failures():
                self.failures += 1
                if failure.is_news(self._session.comm.rank):
                    self._pipeline.call_notes.note(str(failure.error), BackgroundFailureWarning)
        self._steps.settle(finished)
        warn_of_all(self._pipeline.call_notes.take_notes())

    def _due(self, step: int, *, force: bool, is_last: bool) -> frozenset[str]:
        """The levels to which a call saves (collective for "auto")."""
        if self._auto is not None:
            room, working = self._pipeline.has_room(), self._pipeline.working
            return self._auto.due(step, room=room, working=working, force=force, is_last=is_last)
        on = [(name, every) for name, every in self._session.protection.every.items() if every]
        return frozenset(name for name, every in on if force or self.sequence % every == 0)

    def _make_room(self) -> float:
        """Wait for the pipeline if the configuration says so; returns the seconds spent, 0 if there was room."""
        if self._session.config.on_busy != "wait" or self._pipeline.has_room():
            return 0.0
        began = time.monotonic()
        self._pipeline.wait_for_room(_ROOM_SHARE * self._session.config.timeout)
        return time.monotonic() - began

    def _agree(
        self, call: Call, state: Any, refusal: DeeppartError | None, pending: Pending, asked: int
    ) -> Agreed | None:
        began = time.monotonic()
        flattened = refusal if refusal is not None else self._saver.flatten(state)
        agreeing = time.monotonic()
        full = bool(call.due) and not self._pipeline.has_room()
        agreed = self._saver.agree(call, flattened, busy=full, stop=asked)
        pending.note_stage("flatten", agreeing - began)
        pending.note_stage("agree", time.monotonic() - agreeing)
        return agreed

    def _drop_busy(self, pending: Pending, step: int) -> None:
        if self._session.config.on_busy == "wait":
            limit_s = _ROOM_SHARE * self._session.config.timeout
            raise _pipeline_full(step, limit_s, removing=self._pipeline.removing)
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
            pending.note(raw_bytes=nbytes, per_rank_bytes=captured.per_rank_bytes)
            if attempt.sequence == 0:
                self._warn_of_room(nbytes)
        self._pipeline.submit(Job.of(attempt, due, pending, captured))

    def _warn_of_room(self, nbytes: int) -> None:
        """At the first checkpoint of a run, warn if what is kept on this node will not fit, were it not compressed."""
        session = self._session
        level, steps = session.node_levels.get(Level.LOCAL), 0
        for name in (Level.LOCAL, Level.PARTNER):
            steps += session.config.keep[name] + 1 if session.protection.every[name] else 0
        if level is None or not steps or not session.leads_directory or session.earlier[Level.LOCAL]:
            return
        directory = session.topology.directories[session.comm.rank]
        shares = len(session.topology.sharing_directory(session.comm.rank))
        with contextlib.suppress(OSError):  # the level itself will report it
            needed, free = nbytes * shares * steps, level.free_bytes()
            if needed > free:
                self._pipeline.call_notes.note(
                    f"local_dir {directory} has room for {show_bytes(free)}, but {show_bytes(needed)} are needed: "
                    f"{steps} uncompressed steps of {show_bytes(nbytes * shares)}, those kept and those being written. "
                    "Checkpoints will fail at the level local: lower `keep`, or use another local_dir",
                    DeeppartWarning,
                )


def _pipeline_full(step: int, waited_s: float, *, removing: bool) -> CheckpointError:
    """The error of a call for which the pipeline had no room."""
    old = ["old steps are being removed from persistent_dir"] if removing else []
    return CheckpointError(
        f"checkpoint(step={step}): an earlier checkpoint is still being written",
        found="; ".join([f"the pipeline was full for {waited_s:g} s", *old, *hanging()]),
        todo="checkpoint less often, raise `timeout` or `flush_bandwidth`, or set on_busy='skip'",
    )


def warn_unsaved(session: Session, step: int | None) -> None:
    """Warn that ``every="auto"`` has not saved the last steps."""
    if step is not None and session.comm.rank == 0:
        warn_caller(
            f"closed after step {step}, which is not saved: every='auto' had no checkpoint due there. "
            "checkpoint(state, step, force=True) saves the last state",
            DeeppartWarning,
        )


class StepHistory:
    """The used step numbers, and the last one. Used by the training thread alone."""

    def __init__(self, session: Session, recent: list[Pending]) -> None:
        self._root, self._rank = session.directory, session.comm.rank
        self._recent = recent
        self._found_newest = max((key.step for key in session.committed), default=-1)
        self._known = {key.step for key in session.committed}
        self._saved = array("q")  # ascending; small for months of checkpoints
        self._largest = -1  # of the restored step and the steps saved since
        self._restored = False
        self._warned_not_restored = self._warned_counting_down = False

    def restored_from(self, step: int | None) -> None:
        """A restore has succeeded, of a step or (None) without any checkpoint."""
        self._restored = True
        if step is not None:
            self._known.add(step)
            self._largest = step

    def settle(self, finished: Sequence[Pending]) -> None:
        """Forget finished and reported checkpoints; the steps of complete ones stay used."""
        self._recent[:] = [pending for pending in self._recent if pending not in finished]
        counted = [pending.step for pending in finished if _counts(pending)]
        for step in counted:
            insort(self._saved, step)
        self._largest = max([self._largest, *counted])

    def last(self) -> int:
        """The largest step that was restored or saved since; -1 if there is none."""
        return max([self._largest, *(pending.step for pending in self._recent if _counts(pending))])

    def following(self) -> int:
        """The first step after all that are or may be used."""
        return max(self.last(), self._found_newest, *self._known, -1) + 1

    def refusal_of(self, step: int) -> DeeppartError | None:
        """The reason why a step cannot be saved, or None."""
        active = [pending for pending in self._recent if pending.step == step]
        at = bisect_left(self._saved, step)
        used = step in self._saved[at : at + 1] or any(_counts(pending) for pending in active)
        if used or step in self._known:
            return StepExistsError(
                f"step {step} was already saved in this run" if used else f"step {step} is already in the directory",
                expected="a step that has not been committed",
                where=f"step {step}, {self._root}",
                todo=("" if self._restored else "call restore(state) before the loop, and ")
                + f"continue with step {self.following()}; or give the job a directory of its own. To go back on "
                "purpose, end the job, remove newer steps with `deeppart prune --after` (and --local, for the copies "
                "on nodes), and start it again",
            )
        return None

    def warn_not_restored(self, step: int) -> None:
        """Warn once that training starts over although an earlier run has left steps."""
        newest = self._found_newest
        if self._restored or self._warned_not_restored or step >= newest:
            return
        self._warned_not_restored = True
        if self._rank == 0:
            warn_caller(
                f"checkpoint(step={step}), but step {newest} of an earlier run is in the directory and nothing was "
                "restored: that step stays, and the next restore takes it. Call restore(state) before the loop; or "
                "give this run a directory of its own, or remove the old steps with `deeppart prune --after`",
                DeeppartWarning,
            )

    def warn_counting_down(self, step: int) -> None:
        """Warn once that step numbers decrease: ``restore`` and ``load`` take the largest one, not the last."""
        last = self.last()
        if step >= last or self._warned_counting_down:
            return
        self._warned_counting_down = True
        if self._rank == 0:
            warn_caller(
                f"checkpoint(step={step}) after step {last}: of the checkpoints in the directory, restore takes that "
                "with the largest step number, not the one that was made last. Count steps up",
                DeeppartWarning,
            )


def _counts(pending: Pending) -> bool:
    """True if a checkpoint is in progress or complete at some level, so that its step is used."""
    states = [level.state for level in pending.report.levels.values()]
    return not pending.finished or DONE in states
