"""The recorder: a thread that turns what this rank knows of the job into events, and these into files for those who
watch it.

It exchanges nothing with other ranks, and the training thread only hands it the handle of each checkpoint. It writes
when a checkpoint is over, at most once a second; and while one takes long, so that it can be seen that storage hangs.
What it cannot write is reported once; the job goes on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from deeppart import access
from deeppart._threads import start_thread
from deeppart._times import now, timestamp
from deeppart.access import storage_error
from deeppart.access.hanging import call
from deeppart.errors import StorageError, as_error
from deeppart.pending import Pending
from deeppart.storage import DirectoryOwner, PosixStore
from deeppart.telemetry.events import (
    CheckpointEnded,
    Ended,
    Event,
    LevelEnded,
    Restored,
    Started,
    event_line,
    level_ended,
)
from deeppart.telemetry.metrics import Metrics, prometheus_text
from deeppart.telemetry.status import (
    CheckpointStatus,
    ErrorStatus,
    RankStatus,
    StatusFile,
    bounded,
    remove_earlier,
)

#: Interval of checking what is in flight, and the least time between two writes.
_LOOK_S, _LEAST_S = 0.25, 1.0
#: A checkpoint that takes longer than the first is written before it finishes; again after the second.
LONG_S, AGAIN_S = 5.0, 10.0
#: Handles that are queued while storage hangs; later ones are not recorded.
_MOST_WAITING = 1000
#: How long to wait for the last write when the session ends.
_PATIENCE_S = 2.0
#: Errors that are kept.
_MOST_ERRORS = 5


@dataclass(frozen=True, slots=True)
class Outputs:
    """The files to write; None for files that are not wanted.

    Attributes:
        status: the status file.
        metrics: the file for Prometheus.
        events: the file to which a line is appended for each event.
        owner: on rank 0, if there are status files: the directory's owner, to remove the files of earlier sessions.
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
    """A checkpoint in flight: its number, when ``checkpoint()`` returned it, and which levels have ended."""

    number: int
    returned_s: float
    pending: Pending
    ended: set[str] = field(default_factory=set)

    def status(self, *, over: bool) -> CheckpointStatus:
        return CheckpointStatus(self.number, timestamp(self.returned_s), over, bounded(self.pending.report))


class Recorder:
    """The recorder of one rank. The training thread calls the methods, which return at once, except :meth:`close`."""

    def __init__(
        self,
        status: RankStatus,
        levels: Iterable[str],
        outputs: Outputs,
        live: Callable[[], Mapping[str, Any]],
        holds: Callable[[Pending], bool],
        tell: Callable[[str], None],
        prepare: Callable[[], None],
    ) -> None:
        """For a rank with this initial status and these enabled levels.

        The thread calls ``prepare`` first, ``live`` for fields of the status that change, and ``holds`` to learn
        whether a checkpoint is in flight, even if only old steps are still being removed for it. ``tell`` warns the
        caller at the next call.
        """
        self._outputs, self._prepare = outputs, prepare
        self._live, self._holds, self._tell = live, holds, tell
        self._news: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # The attributes below are used by the thread only.
        self._status, self._metrics = bounded(status), Metrics(levels)
        self._in_flight: list[_Followed] = []
        self._last: CheckpointStatus | None = None
        self._numbers, self._last_began_s = 0, 0.0
        self._changed, self._written_at = True, 0.0
        self._refused: set[str] = set()
        self._thread: threading.Thread | None = None
        if outputs.any:
            try:
                self._thread = start_thread(self._run, "deeppart-status", self._failed_by)
            except RuntimeError as error:  # no more threads are possible
                tell(f"no status is written: {error}")

    def begun(self, pending: Pending) -> None:
        """Record a handle returned by ``checkpoint()``; one that was not due is ignored."""
        if self._thread is not None and (pending.levels or pending.skipped) and self._news.qsize() < _MOST_WAITING:
            self._news.put(partial(self._follow, pending, time.time()))

    def restored(self, step: int, seconds: float) -> None:
        """Record a successful restore and its duration."""
        if self._thread is not None:
            self._news.put(partial(self._emit, Restored(step, seconds)))

    def close(self, *, failed: bool, patience_s: float = _PATIENCE_S) -> None:
        """Write for the last time; a second call does nothing."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._news.put(partial(self._end, failed))
            self._news.put(None)
            thread.join(patience_s)

    def _run(self) -> None:
        self._prepare()
        self._look()
        status = self._status
        self._emit(Started(status.library, status.process, status.world_size, status.nodes, status.reduced))
        self._publish()
        if self._outputs.owner is not None and self._outputs.status is not None:
            remove_earlier(self._outputs.owner.directory, self._outputs.owner)
        while self._advance():
            pass
        self._publish()
        self._emit(Ended(self._status.failed, int(self._status.metric("checkpoints_total") or 0)))

    def _failed_by(self, error: BaseException) -> None:
        """A bug in the recorder, which must not affect the job."""
        self._tell(f"the status of this rank is not written any more: {as_error(error, 'it failed')}")
        self._thread = None  # nothing more is queued

    def _advance(self) -> bool:
        """Wait for messages, check what is in flight, and write if necessary; False at the end."""
        with contextlib.suppress(queue.Empty):
            news = self._news.get(timeout=self._pause_s())
            if news is None:
                return False
            news()
        self._look()
        if self._is_due():
            self._publish()
        return True

    def _pause_s(self) -> float | None:
        """How long to wait for messages; None for no limit."""
        return _LOOK_S if self._in_flight or self._changed or self._status.repairing else None

    def _follow(self, pending: Pending, returned_s: float) -> None:
        self._in_flight.append(_Followed(self._numbers, returned_s, pending))
        self._numbers, self._last_began_s = self._numbers + 1, returned_s

    def _end(self, failed: bool) -> None:
        self._status = replace(self._status, ended=now(), failed=failed)

    def _look(self) -> None:
        """Emit the events since the last check."""
        was_repairing, self._status = self._status.repairing, replace(self._status, **self._live())
        self._changed = self._changed or was_repairing != self._status.repairing
        for each in list(self._in_flight):
            pending = each.pending
            ended = [level for level in pending.levels if level not in each.ended and pending.settled(level)]
            over = pending.finished and not self._holds(pending)
            if not ended and not over:
                continue
            found = each.status(over=over)
            for level in ended:
                each.ended.add(level)
                self._emit(level_ended(found.report, level, each.returned_s))
            if over:
                self._in_flight.remove(each)
                self._last = found
                self._emit(CheckpointEnded(found.began, found.report))

    def _emit(self, event: Event) -> None:
        """Handle an event: metrics, status and event files are updated from here."""
        self._metrics.count(event)
        match event:
            case Restored():
                self._status = replace(self._status, restored=event.step)
            case LevelEnded() if event.failed:
                self._note(ErrorStatus(event.at, event.step, event.level, event.report.error or "it failed"))
            case CheckpointEnded() if event.report.retire_error is not None:
                self._note(ErrorStatus(event.began, event.report.step, "", event.report.retire_error))
        self._changed = self._changed or not isinstance(event, LevelEnded)
        if self._outputs.events is not None:
            status = self._status
            origin = {"session": status.session, "job": status.job, "node": status.node, "rank": status.rank}
            self._attempt("events_file", partial(append_line, self._outputs.events, event_line(event, now(), origin)))

    def _note(self, error: ErrorStatus) -> None:
        self._status = replace(self._status, errors=(*self._status.errors, error)[-_MOST_ERRORS:])

    def _is_due(self) -> bool:
        """True if it is time to write."""
        since = time.monotonic() - self._written_at
        if self._changed:
            return since >= _LEAST_S
        is_long = any(time.time() - each.returned_s >= LONG_S for each in self._in_flight)
        return since >= AGAIN_S and (is_long or self._status.repairing)

    def _publish(self) -> None:
        """Rewrite the status and metrics files."""
        status, next_due = self._status, None
        if status.period_s is not None and self._last_began_s and status.ended is None:
            next_due = timestamp(self._last_began_s + status.period_s)
        over = () if self._last is None else (self._last,)
        self._status = status = replace(
            status,
            written=now(),
            next_due=next_due,
            metrics=self._metrics.snapshot(),
            checkpoints=(*over, *(each.status(over=False) for each in self._in_flight)),
        )
        self._changed, self._written_at = False, time.monotonic()
        if self._outputs.status is not None:
            self._attempt("status", partial(self._outputs.status.write, status))
        if self._outputs.metrics is not None:
            text = prometheus_text([status]).encode()
            path = self._outputs.metrics
            write = partial(PosixStore(path.parent).replace, path.name, text, durable=False)
            self._attempt("metrics_file", write)

    def _attempt(self, setting: str, write: Callable[[], None]) -> None:
        try:
            write()
        except StorageError as error:
            if setting not in self._refused:
                self._refused.add(setting)
                self._tell(f"{setting}: {error}\n  training and checkpoints go on; this is told once")


def append_line(path: Path, data: bytes) -> None:
    """Append bytes to a file of this user, by one write; creates the file."""
    try:
        with access.open_folder(path.parent, access.Rules()) as folder:
            try:
                descriptor = folder.open(path.name, os.O_WRONLY | os.O_APPEND)
            except FileNotFoundError:
                descriptor = folder.create(path.name, os.O_WRONLY | os.O_APPEND)
        try:
            if call("write", path, descriptor, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise storage_error("cannot add to a file", error, path) from error
