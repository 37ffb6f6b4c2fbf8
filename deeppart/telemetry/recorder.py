"""The recorder: a thread that writes what this rank knows of the job to files for those who watch the job.

It exchanges nothing with other ranks, and the training thread only hands it the handle of each checkpoint. It writes
when a checkpoint is over, at most once a second; and while one takes long, so that it can be seen that storage hangs.
What it cannot write is reported once; the job goes on.
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from deeppart._threads import start_thread
from deeppart.errors import StorageError, as_error
from deeppart.model import Report
from deeppart.pending import DONE, FAILED, OFF, SKIPPED, Pending
from deeppart.storage.files import append_line, put_file
from deeppart.storage.owner import DirectoryOwner
from deeppart.storage.timestamps import now, timestamp
from deeppart.telemetry.prometheus import prometheus_text
from deeppart.telemetry.record import (
    CheckpointStatus,
    ErrorStatus,
    LevelTotals,
    RankStatus,
    ScrubStatus,
    Totals,
    bounded_lines,
    bounded_report,
)
from deeppart.telemetry.status_files import StatusFile, remove_earlier

#: Between two looks at what is in flight, and the least time between two writes.
_LOOK_S, _LEAST_S = 0.25, 1.0
#: A checkpoint that takes longer than the first is written down before it is over; then again after the second.
LONG_S, AGAIN_S = 5.0, 10.0
#: Handles that wait while storage hangs; later ones are not recorded.
_MOST_WAITING = 1000
#: How long the last write is waited for when the session ends.
_PATIENCE_S = 2.0
#: Errors that are remembered.
_MOST_ERRORS = 5
#: How a file of events begins.
EVENTS_BEGIN = re.compile(rb'\{"event": "[a-z]+", "time": "[^"]*", "session": "[0-9a-f]{32}", ')


@dataclass(frozen=True, slots=True)
class Facts:
    """What does not change during a session; the fields are those of :class:`RankStatus`."""

    session: str
    job: str
    library: str
    node: str
    process: int
    rank: int
    world_size: int
    nodes: int
    every: dict[str, int]
    levels: tuple[str, ...]
    reduced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files to write; None for those that are not wanted.

    Attributes:
        status: the status file.
        metrics: the file for Prometheus.
        events: the file that gets a line for each event.
        owner: on rank 0, if there are status files: of the directory, from which those of earlier sessions are removed.
    """

    status: StatusFile | None = None
    metrics: Path | None = None
    events: Path | None = None
    owner: DirectoryOwner | None = None

    @property
    def any(self) -> bool:
        """True if there is anything to write."""
        return any(each is not None for each in (self.status, self.metrics, self.events))


@dataclass(frozen=True, slots=True, eq=False)
class _Followed:
    """A checkpoint in flight: its number, when ``checkpoint()`` returned it, and which levels are counted already."""

    number: int
    began_s: float
    pending: Pending
    counted: set[str] = field(default_factory=set)

    def status(self, report: Report, *, over: bool) -> CheckpointStatus:
        return CheckpointStatus(self.number, timestamp(self.began_s), over, report)


@dataclass(frozen=True, slots=True)
class Live:
    """What the background of a job is at.

    Attributes:
        period_s: seconds from one checkpoint to the next, by ``every="auto"``; None where that is not known.
        repairing: true if redundancy is being rebuilt.
        scrubbed: None where scrubbing is off.
    """

    period_s: float | None
    repairing: bool
    scrubbed: ScrubStatus | None


class Source(Protocol):
    """Where the recorder finds what the job knows; called by its thread."""

    def live(self) -> Live:
        """What the background is at."""

    def holds(self, pending: Pending) -> bool:
        """True if a checkpoint is in flight, though all its levels may be over: what it replaces is being removed."""

    def tell(self, text: str) -> None:
        """Something to warn the caller of, at the next call."""


class Recorder:
    """Of one rank. The methods are for the training thread, and return at once; but :meth:`close`."""

    def __init__(self, facts: Facts, outputs: Outputs, source: Source, prepare: Callable[[], None]) -> None:
        self._facts, self._outputs, self._source, self._prepare = facts, outputs, source, prepare
        self._origin = Origin(facts.session, facts.job, facts.node, facts.rank)
        self._news: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # From here on all is the thread's.
        self._sums = Sums(facts.levels)
        self._in_flight: list[_Followed] = []
        self._last: CheckpointStatus | None = None
        self._numbers, self._last_began_s = 0, 0.0
        self._began, self._failed = now(), False
        self._restored: int | None = None
        self._repairing = False
        self._changed, self._written_at = True, 0.0
        self._refused: set[str] = set()
        self._thread: threading.Thread | None = None
        if outputs.any:
            try:
                self._thread = start_thread(self._run, "deeppart-status", self._failed_by)
            except RuntimeError as error:  # there can be no more threads
                source.tell(f"no status is written: {error}")

    def begun(self, pending: Pending) -> None:
        """``checkpoint()`` returns this; one that was not due is none."""
        if self._thread is not None and (pending.levels or pending.skipped) and self._news.qsize() < _MOST_WAITING:
            self._news.put(partial(self._follow, pending, time.time()))

    def restored(self, step: int, seconds: float) -> None:
        """A restore has succeeded, in that time."""
        if self._thread is not None:
            self._news.put(partial(self._note_restored, step, seconds))

    def close(self, *, failed: bool, patience_s: float = _PATIENCE_S) -> None:
        """Write for the last time; a second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._news.put(partial(self._end, failed))
            self._news.put(None)
            thread.join(patience_s)

    def _run(self) -> None:
        self._prepare()
        self._record(None)
        if self._outputs.owner is not None and self._outputs.status is not None:
            remove_earlier(self._outputs.owner.directory, self._outputs.owner)
        while self._advance():
            pass
        self._record(now())

    def _failed_by(self, error: BaseException) -> None:
        """A bug of ours; the job has nothing to do with it."""
        self._source.tell(f"the status of this rank is not written any more: {as_error(error, 'it failed')}")
        self._thread = None  # nothing more is queued

    def _advance(self) -> bool:
        """Wait for news, look at what is in flight, and write if need be; False at the end."""
        with contextlib.suppress(queue.Empty):
            news = self._news.get(timeout=self._pause_s())
            if news is None:
                return False
            news()
        self._settle()
        if self._is_due():
            self._publish(None)
        return True

    def _pause_s(self) -> float | None:
        """How long to wait for news; None for as long as it takes."""
        return _LOOK_S if self._in_flight or self._changed or self._repairing else None

    def _follow(self, pending: Pending, began_s: float) -> None:
        self._in_flight.append(_Followed(self._numbers, began_s, pending))
        self._numbers, self._last_began_s = self._numbers + 1, began_s

    def _note_restored(self, step: int, seconds: float) -> None:
        self._restored, self._changed = step, True
        self._append(self._origin.line("restored", step=step, seconds=seconds))

    def _end(self, failed: bool) -> None:
        self._failed = failed

    def _settle(self) -> None:
        """Count the levels and the checkpoints that are over; see whether a repair is."""
        repairing = self._source.live().repairing
        self._changed = self._changed or repairing != self._repairing
        self._repairing = repairing
        for each in list(self._in_flight):
            pending = each.pending
            settled = [level for level in pending.levels if level not in each.counted and pending.settled(level)]
            over = pending.finished and not self._source.holds(pending)
            if not settled and not over:
                continue
            report = bounded_report(pending.report)
            for level in settled:
                self._sums.add_level(level, report, each.began_s)
                each.counted.add(level)
            if over:
                self._in_flight.remove(each)
                self._sums.add(report, each.began_s)
                self._last, self._changed = each.status(report, over=True), True
                self._append(self._origin.checkpoint(report, each.began_s))

    def _is_due(self) -> bool:
        """True if it is time to write."""
        since = time.monotonic() - self._written_at
        if self._changed:
            return since >= _LEAST_S
        is_long = any(time.time() - each.began_s >= LONG_S for each in self._in_flight)
        return since >= AGAIN_S and (is_long or self._repairing)

    def _record(self, ended: str | None) -> None:
        """The first and the last entry."""
        status = self._publish(ended)
        self._append(self._origin.started(status) if ended is None else self._origin.ended(status))

    def _publish(self, ended: str | None) -> RankStatus:
        status = self._status(ended)
        self._changed, self._written_at = False, time.monotonic()
        if self._outputs.status is not None:
            self._attempt("status", partial(self._outputs.status.write, status))
        if self._outputs.metrics is not None:
            text = prometheus_text([status]).encode()
            self._attempt("metrics_file", partial(put_file, self._outputs.metrics, text))
        return status

    def _append(self, line: bytes) -> None:
        if self._outputs.events is not None:
            self._attempt("events_file", partial(append_line, self._outputs.events, line))

    def _attempt(self, setting: str, write: Callable[[], None]) -> None:
        try:
            write()
        except StorageError as error:
            if setting not in self._refused:
                self._refused.add(setting)
                self._source.tell(f"{setting}: {error}\n  training and checkpoints go on; this is told once")

    def _status(self, ended: str | None) -> RankStatus:
        facts, live = self._facts, self._source.live()
        checkpoints = [] if self._last is None else [self._last]
        checkpoints += [each.status(bounded_report(each.pending.report), over=False) for each in self._in_flight]
        next_due = None
        if live.period_s is not None and self._last_began_s and ended is None:
            next_due = timestamp(self._last_began_s + live.period_s)
        return RankStatus(
            session=facts.session,
            job=facts.job,
            library=facts.library,
            node=facts.node,
            process=facts.process,
            rank=facts.rank,
            world_size=facts.world_size,
            nodes=facts.nodes,
            began=self._began,
            written=now(),
            ended=ended,
            failed=self._failed,
            restored=self._restored,
            every=facts.every,
            period_s=live.period_s,
            next_due=next_due,
            repairing=live.repairing,
            reduced=bounded_lines(facts.reduced),
            scrubbed=live.scrubbed,
            totals=self._sums.totals,
            levels=self._sums.levels,
            checkpoints=tuple(checkpoints),
            errors=self._sums.errors,
        )


class Sums:
    """Sums over the checkpoints of a session, of what their reports say. Used by one thread."""

    def __init__(self, levels: Sequence[str]) -> None:
        self.totals = Totals()
        self.levels: Mapping[str, LevelTotals] = {level: LevelTotals() for level in levels}
        self.errors: tuple[ErrorStatus, ...] = ()

    def add(self, report: Report, began_s: float) -> None:
        """Count a checkpoint that is over; its levels for themselves: :meth:`add_level`."""
        old, skipped = self.totals, any(level.state == SKIPPED for level in report.levels.values())
        stages = {**old.stages_s}
        for stage, seconds in report.stages_s.items():
            stages[stage] = stages.get(stage, 0.0) + seconds
        self.totals = Totals(
            checkpoints=old.checkpoints + (not skipped),
            skipped=old.skipped + skipped,
            blocked_s=old.blocked_s + report.blocked_s,
            waited_s=old.waited_s + report.waited_s,
            held_s=old.held_s + report.held_s,
            most_blocked_s=max(old.most_blocked_s, report.blocked_s),
            raw_bytes=old.raw_bytes + report.raw_bytes,
            encoded_bytes=old.encoded_bytes + report.encoded_bytes,
            retries=old.retries + report.retries,
            retire_errors=old.retire_errors + (report.retire_error is not None),
            stages_s=stages,
        )
        if report.retire_error is not None:
            self._note(ErrorStatus(timestamp(began_s), report.step, "", report.retire_error))

    def add_level(self, name: str, report: Report, began_s: float) -> None:
        """Count one level of a checkpoint, which is over there. ``began_s`` as for :meth:`add`."""
        old, level = self.levels.get(name, LevelTotals()), report.levels[name]
        ended = timestamp(began_s + (level.seconds or 0.0))
        if level.state == FAILED:
            self._note(ErrorStatus(ended, report.step, name, level.error or "it failed"))
        busy_s = report.stages_s.get(name, 0.0)
        new = replace(
            old,
            done=old.done + (level.state == DONE),
            failed=old.failed + (level.state == FAILED),
            written_bytes=old.written_bytes + level.nbytes,
            unchanged_bytes=old.unchanged_bytes + level.referenced_bytes,
            busy_s=old.busy_s + busy_s,
        )
        if level.state == DONE:
            new = replace(
                new,
                last_step=report.step,
                last_at=ended,
                last_seconds=level.seconds,
                last_bytes=level.nbytes,
                last_busy_s=busy_s,
            )
        self.levels = {**self.levels, name: new}

    def _note(self, error: ErrorStatus) -> None:
        self.errors = (*self.errors, error)[-_MOST_ERRORS:]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where events come from; in every line. Events are JSON lines, as https://jsonlines.org has them.

    Attributes:
        session: 32 hex digits for this run of the job.
        job, node, rank: of the rank that writes.
    """

    session: str
    job: str
    node: str
    rank: int

    def line(self, event: str, **content: Any) -> bytes:
        """One event, at this moment."""
        document = {"event": event, "time": now(), **asdict(self), **content}
        return json.dumps(document, allow_nan=False).encode() + b"\n"

    def started(self, status: RankStatus) -> bytes:
        """The session has begun."""
        about = {"library": status.library, "process": status.process, "ranks": status.world_size}
        return self.line("started", **about, nodes=status.nodes, reduced=list(status.reduced))

    def checkpoint(self, report: Report, began_s: float) -> bytes:
        """A checkpoint is over."""
        levels = {name: level for name, level in report.levels.items() if level.state != OFF}
        return self.line("checkpoint", began=timestamp(began_s), **asdict(replace(report, levels=levels)))

    def ended(self, status: RankStatus) -> bytes:
        """The session has ended; by an exception or not."""
        return self.line("ended", failed=status.failed, checkpoints=status.totals.checkpoints)
