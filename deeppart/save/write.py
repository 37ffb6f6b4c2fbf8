"""Writing: one rank's share of one checkpoint, into the part files of its levels.

The local part file is written from staging memory and followed by the copy to the persistent level as it grows. Where
there is no local part, or it cannot be completed or read back, the persistent part is written from staging memory.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from deeppart.errors import CheckpointError, CorruptFileError, StorageError
from deeppart.model import Level
from deeppart.part import PartSummary
from deeppart.pending import RUNNING
from deeppart.save.compress import Compressing, PartEncoding, adds_to
from deeppart.save.incremental import Incremental
from deeppart.save.job import Job, LocalPart, Opened, Written
from deeppart.save.rank_storage import RankStorage
from deeppart.save.relay import Relay, SourceLostError
from deeppart.save.removal import Removals
from deeppart.save.transfer import Unchanged, check_copy, copy_part, recode_part, write_part
from deeppart.save.workers import Workers
from deeppart.storage.exclusive import remove_links
from deeppart.storage.files import Appending
from deeppart.storage.node import NodeLevel

#: Errors that network file systems and devices get over; the persistent part is then written again after these pauses.
PASSING_ERRORS = frozenset(
    {
        errno.EIO,
        errno.EAGAIN,
        errno.EBUSY,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.ENOTCONN,
        errno.ECONNRESET,
        errno.EREMOTEIO,
    }
)
RETRY_PAUSES_S = (0.2, 1.0)
T = TypeVar("T")


class ShareWriter:
    """Writes the shares of one rank."""

    def __init__(
        self,
        storage: RankStorage,
        compressing: Compressing,
        incremental: Incremental,
        behind: Workers,
        removals: Removals,
    ) -> None:
        self._storage, self._compressing = storage, compressing
        self._incremental, self._behind, self._removals = incremental, behind, removals

    def prepare(self, job: Job) -> list[bytes] | None:
        """Digests of a captured share's chunks, if it looks as if some of them have not changed; None if not."""
        staged = job.lease.memory
        if staged is None:
            return None
        self._compressing.try_new_dtypes(staged)
        return self._incremental.digests(staged, job.due)

    def open_local(self, job: Job, level: NodeLevel, digests: Sequence[bytes] | None) -> LocalPart:
        """Begin the local part file."""
        layout, _ = job.description()
        encoding = self._compressing.begin(Level.LOCAL, layout)
        file = level.open_part(job.attempt, self._storage.rank)
        unchanged = Unchanged(digests)
        try:
            unchanged = self._incremental.refer(Level.LOCAL, job.due, digests, layout, file.path.parent)
            return LocalPart(file, Relay(file, unchanged.names), encoding, unchanged)
        except BaseException:
            _abort(file, unchanged)
            raise

    def write_local(self, job: Job, part: LocalPart) -> Written:
        """Write and name the local part file; what was written of it is removed if that fails."""
        began = time.monotonic()
        try:
            staged = job.lease.memory
            if staged is None:
                raise CheckpointError("the share is not in staging memory")
            encoding = part.encoding.encoding
            summary = write_part(staged, part.relay, encoding, job.attempt, self._storage.rank, part.unchanged)
            job.check_capture()
            part.relay.complete(summary)
            part.file.commit()
            self._note(job, part.encoding, summary, part.file.busy_s, time.monotonic() - began, ())
            return Written(summary, tuple(part.unchanged.names.values()))
        except BaseException:
            part.relay.give_up()
            _abort(part.file, part.unchanged)
            raise

    def _note(
        self,
        job: Job,
        part: PartEncoding,
        summary: PartSummary,
        busy_s: float,
        seconds: float,
        remarks: tuple[str, ...],
    ) -> None:
        """A part is written."""
        written = summary.chunks["raw_length"][summary.chunks["base"] == 0].sum()
        self._compressing.completed(part, summary.nbytes, int(written), busy_s, seconds)
        job.pending.note_compression(part.level, (*part.reasons, *remarks))
        job.pending.note_cost(encoded_bytes=summary.encoded_bytes)
        job.pending.note_level(part.level, RUNNING, nbytes=summary.nbytes, referenced_bytes=summary.referenced_bytes)

    def write_persistent(self, job: Job, opened: Opened, open_part: Callable[[], Appending] | None = None) -> Written:
        """Copy the local part, or write from staging memory; again after an error that may pass."""
        if opened.failure is not None:
            raise opened.failure
        if open_part is None:
            open_part = partial(self._storage.persistent.open_part, job.attempt, self._storage.rank)
        return self.tried_again(job, lambda: self._write_persistent_once(job, opened, open_part))

    def tried_again(self, job: Job, work: Callable[[], T]) -> T:
        """Do something at the persistent level; again after an error that may pass, and where room is made for it."""
        for pause_s in (*RETRY_PAUSES_S, None):
            before = self._removals.removed_count()
            try:
                return work()
            except StorageError as error:
                if pause_s is None or not (error.errno in PASSING_ERRORS or self._removals.made_room(error, before)):
                    raise
                job.pending.note_retry()
                time.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    def _write_persistent_once(self, job: Job, opened: Opened, open_part: Callable[[], Appending]) -> Written:
        layout, _ = job.description()
        encoding = self._compressing.begin(Level.PERSISTENT, layout)
        file = open_part()
        unchanged = Unchanged(opened.digests)
        began = time.monotonic()
        try:
            unchanged = self._incremental.refer(Level.PERSISTENT, job.due, opened.digests, layout, file.path.parent)
            summary, remarks = self._fill(job, opened, file, encoding, unchanged)
            if opened.digests is not None and self._storage.persistent.mates:
                remarks = (*remarks, 'unchanged chunks are written again: files = "node"')
            job.check_capture()
            file.commit()
            self._note(job, encoding, summary, file.busy_s, time.monotonic() - began, remarks)
            return Written(summary, tuple(unchanged.names.values()))
        except BaseException:
            _abort(file, unchanged)
            raise

    def _fill(
        self, job: Job, opened: Opened, file: Appending, encoding: PartEncoding, unchanged: Unchanged
    ) -> tuple[PartSummary, tuple[str, ...]]:
        """From the local part if that works out, otherwise from staging memory if it is still there."""
        if opened.local is not None:
            try:
                return self._follow(job, opened.local, file, encoding, unchanged)
            except (SourceLostError, CorruptFileError):
                if job.lease.claim() is None:
                    raise
                opened.local.relay.close()  # a file that was given up takes space as long as someone has it open
                file.restart()
        staged = job.lease.claim()
        if staged is None:
            raise CheckpointError("the share is neither in staging memory nor in a local part")
        return write_part(staged, file, encoding.encoding, job.attempt, self._storage.rank, unchanged), ()

    def _follow(
        self, job: Job, local: LocalPart, file: Appending, encoding: PartEncoding, unchanged: Unchanged
    ) -> tuple[PartSummary, tuple[str, ...]]:
        """Copy the local part as it grows; chunks that only this level is to have encoded are encoded on the way.

        Where either part refers to other files, the one cannot be a copy of the other.
        """
        (layout, document), relay = job.description(), local.relay
        refers = unchanged.references or local.unchanged.references
        if refers or adds_to(encoding.chooser, local.encoding.chooser, layout):
            what = (layout, document, file, encoding.encoding, job.attempt, self._storage.rank)
            summary = recode_part(relay, *what, self._behind, unchanged.references)
            relay.wait_for_end()  # the manifest will name the local part too
            return summary, ()
        found, copied = copy_part(relay, file, self._behind), relay.summary
        if copied is None:  # its end was read, so that is what was waited for
            raise SourceLostError("the part file to copy was not completed", where=str(local.file.path))
        check_copy(found, copied, str(local.file.path))
        return copied, ("a copy of the local part",)


def _abort(file: Appending, unchanged: Unchanged) -> None:
    """Leave nothing of a part that does not come to be."""
    file.abort()
    remove_links(unchanged.names.values())
