"""Writing: one rank's share of one checkpoint, into the part files of its levels.

The local part file is written from staging memory and followed by the copy to the persistent level as it grows. Where
there is no local part, or it cannot be completed or read back, the persistent part is written from staging memory.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from deeppart.compressing import Compressing, PartEncoding, adds_to
from deeppart.errors import CheckpointError, CorruptFileError, DeeppartError, StorageError
from deeppart.levels.files import DurableFile
from deeppart.levels.node import NodeLevel
from deeppart.levels.persistent import PersistentLevel
from deeppart.levels.relay import Relay, SourceLostError
from deeppart.levels.transfer import Staged, check_copy, copy_part, recode_part, write_part
from deeppart.model import Attempt
from deeppart.part import PartSummary
from deeppart.pending import DONE, RUNNING, Pending
from deeppart.state.deferred import DeferredCopy
from deeppart.state.document import PartDocument
from deeppart.state.layout import ShareLayout

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


@dataclass(slots=True)
class Job:
    """One checkpoint in the pipeline of one rank.

    Attributes:
        attempt: which checkpoint.
        due: levels it goes to.
        staged: the share in staging memory, while it is there; never if it could not be captured.
        pending: where progress is reported.
        failure: why the share could not be captured, or None.
        deferred: copies into staging memory that are still to be made, or None.
        layout, document: of the captured share; they outlive ``staged``.
        encoding: how the local part is encoded; None without one.
        relay: the local part file, which the drain follows; None without one.
        summary: of the part file, once there is a complete one.
        passed_on: the store has handed it to the drain, which settles the persistent level from then on.
        readers: who may still read the share in staging memory: "store", "drain". The last one gives it back.
        claimed: the drain reads it there, and not the local part.
        open_levels: levels that are not settled yet.
    """

    attempt: Attempt
    due: frozenset[str]
    staged: Staged | None
    pending: Pending
    failure: DeeppartError | None = None
    deferred: DeferredCopy | None = None
    layout: ShareLayout | None = None
    document: PartDocument | None = None
    encoding: PartEncoding | None = None
    relay: Relay | None = None
    summary: PartSummary | None = None
    passed_on: bool = False
    readers: set[str] = field(default_factory=set)
    claimed: bool = False
    open_levels: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.open_levels = set(self.due)
        self.readers = {"store", "drain"} if "persistent" in self.due else {"store"}
        if self.staged is not None:
            self.layout, self.document = self.staged.layout, self.staged.document

    def is_on_nodes(self) -> bool:
        """Whether it went to nodes' storage, and is complete at all levels there that it went to."""
        levels = self.due - {"persistent"}
        return bool(levels) and all(self.pending.report.levels[level].state == DONE for level in levels)


class ShareWriter:
    """Writes the shares of one rank.

    Args:
        local: the local level, or None without one.
        persistent: the persistent level.
        compressing: encodes chunks.
        rank: this rank.
        claim: keeps a job's staging memory for the persistent level; None if it has been given back already.
    """

    def __init__(
        self,
        local: NodeLevel | None,
        persistent: PersistentLevel,
        compressing: Compressing,
        rank: int,
        claim: Callable[[Job], Staged | None],
    ) -> None:
        self._local, self._persistent = local, persistent
        self._compressing, self._rank, self._claim = compressing, rank, claim

    def open_local(self, job: Job) -> DurableFile:
        """Begin the local part file, and give the job the relay that follows it.

        Raises:
            StorageError: the level refused. Or why there is no share.
        """
        assert self._local is not None
        if job.failure is not None:
            raise job.failure
        assert job.layout is not None
        job.encoding = self._compressing.begin("local", job.layout)
        file = self._local.open_part(job.attempt, self._rank)
        try:
            job.relay = Relay(file)
        except BaseException:
            file.abort()
            raise
        return file

    def write_local(self, job: Job, file: DurableFile) -> PartSummary:
        """Write and name the local part file; what was written of it is removed if that fails.

        Raises:
            StorageError: the level refused.
        """
        assert job.staged is not None and job.relay is not None and job.encoding is not None
        began = time.monotonic()
        try:
            job.summary = write_part(job.staged, job.relay, job.encoding.encoding, job.attempt, self._rank)
            job.relay.end(complete=True)
            file.commit()
        except BaseException:
            file.abort()
            raise
        self._compressing.completed(job.encoding, job.summary.nbytes, file.busy_s, time.monotonic() - began)
        job.pending.note_compression("local", job.encoding.reasons)
        job.pending.note_cost(encoded_bytes=job.summary.encoded_bytes)
        job.pending.note_level("local", RUNNING, nbytes=job.summary.nbytes)
        return job.summary

    def write_persistent(self, job: Job) -> PartSummary:
        """Copy the local part, or write from staging memory; again after an error that may pass.

        Raises:
            StorageError: the level refused, every time. CorruptFileError: the local part has changed, and the share is
                not in memory any more. Or why there is no share.
        """
        if job.failure is not None:
            raise job.failure
        for pause_s in (*RETRY_PAUSES_S, None):
            try:
                return self._write_persistent_once(job)
            except StorageError as error:
                if pause_s is None or error.errno not in PASSING_ERRORS:
                    raise
                job.pending.note_retry()
                time.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    def _write_persistent_once(self, job: Job) -> PartSummary:
        assert job.layout is not None
        encoding = self._compressing.begin("persistent", job.layout)
        file = self._persistent.open_part(job.attempt, self._rank)
        began = time.monotonic()
        try:
            summary, reasons = self._fill(job, file, encoding)
            file.commit()
        except BaseException:
            file.abort()
            raise
        self._compressing.completed(encoding, summary.nbytes, file.busy_s, time.monotonic() - began)
        job.pending.note_compression("persistent", reasons)
        job.pending.note_cost(encoded_bytes=summary.encoded_bytes)
        job.pending.note_level("persistent", RUNNING, nbytes=summary.nbytes)
        return summary

    def _fill(self, job: Job, file: DurableFile, encoding: PartEncoding) -> tuple[PartSummary, tuple[str, ...]]:
        """From the local part if that works out, otherwise from staging memory if it is still there.

        Returns:
            What was written, and why it is encoded as it is.
        """
        if job.relay is not None:
            try:
                return self._follow(job, job.relay, file, encoding)
            except (SourceLostError, CorruptFileError):
                if self._claim(job) is None:
                    raise
                job.relay.close()  # a file that was given up takes space as long as someone has it open
                file.restart()
        staged = self._claim(job)
        if staged is None:
            raise CheckpointError("the share is neither in staging memory nor in a local part")
        return write_part(staged, file, encoding.encoding, job.attempt, self._rank), encoding.reasons

    def _follow(
        self, job: Job, relay: Relay, file: DurableFile, encoding: PartEncoding
    ) -> tuple[PartSummary, tuple[str, ...]]:
        """Copy the local part as it grows; chunks that only this level is to have encoded are encoded on the way."""
        assert job.layout is not None and job.document is not None and job.encoding is not None
        if adds_to(encoding.chooser, job.encoding.chooser, job.layout):
            summary = recode_part(relay, job.layout, job.document, file, encoding.encoding, job.attempt, self._rank)
            relay.wait_for_end()  # the manifest will name the local part too
            return summary, encoding.reasons
        found = copy_part(relay, file)
        assert job.summary is not None
        check_copy(found, job.summary, str(self._local and self._local.part_path(job.attempt, self._rank)))
        return job.summary, (*encoding.reasons, "a copy of the local part")
