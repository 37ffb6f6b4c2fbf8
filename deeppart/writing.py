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
from deeppart.incremental import Incremental
from deeppart.levels.files import DurableFile
from deeppart.levels.links import remove_links
from deeppart.levels.node import NodeLevel
from deeppart.levels.persistent import PersistentLevel
from deeppart.levels.relay import Relay, SourceLostError
from deeppart.levels.transfer import Staged, Unchanged, check_copy, copy_part, recode_part, write_part
from deeppart.levels.workers import Workers
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
        digests: of the raw bytes of each chunk, where some of them may be unchanged; None if nothing is known.
        unchanged: level -> what its part refers to.
        relay: the local part file, which the drain follows; None without one.
        summary: of the part file, once there is a complete one.
        passed_on: the store has handed it to the drain, which settles the persistent level from then on.
        readers: who may still read the share in staging memory: "store", "drain". The last one gives it back.
        claimed: the drain reads it there, and not the local part.
        open_levels: levels that are not settled yet.
        reported: levels of which this rank has begun to tell the others how it went.
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
    digests: list[bytes] | None = None
    unchanged: dict[str, Unchanged] = field(default_factory=dict)
    relay: Relay | None = None
    summary: PartSummary | None = None
    passed_on: bool = False
    readers: set[str] = field(default_factory=set)
    claimed: bool = False
    open_levels: set[str] = field(default_factory=set)
    reported: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.open_levels = set(self.due)
        self.readers = {"store", "drain"} if "persistent" in self.due else {"store"}
        if self.staged is not None:
            self.layout, self.document = self.staged.layout, self.staged.document

    def check_capture(self) -> None:
        """Before a part gets its name.

        Raises:
            CheckpointError: what was captured in the background has turned out to be wrong.
        """
        error = None if self.deferred is None else self.deferred.look_again()
        if error is not None:
            raise error

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
        incremental: knows which chunks need not be written.
        rank: this rank.
        behind: writes to the persistent level what has been read from the local one.
        claim: keeps a job's staging memory for the persistent level; None if it has been given back already.
    """

    def __init__(
        self,
        local: NodeLevel | None,
        persistent: PersistentLevel,
        compressing: Compressing,
        incremental: Incremental,
        rank: int,
        behind: Workers,
        claim: Callable[[Job], Staged | None],
    ) -> None:
        self._local, self._persistent = local, persistent
        self._compressing, self._incremental = compressing, incremental
        self._rank, self._behind, self._claim = rank, behind, claim

    def look(self, job: Job) -> None:
        """What can be known of a captured share before any of it is written."""
        if job.staged is not None and job.failure is None:
            self._compressing.look(job.staged)
            job.digests = self._incremental.look(job.staged, job.due)

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
            job.relay = Relay(file, self._refer(job, "local", file).names)
        except BaseException:
            self._abort(job, "local", file)
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
            encoding, unchanged = job.encoding.encoding, job.unchanged["local"]
            job.summary = write_part(job.staged, job.relay, encoding, job.attempt, self._rank, unchanged)
            job.check_capture()
            job.relay.end(complete=True)
            file.commit()
        except BaseException:
            self._abort(job, "local", file)
            raise
        self._note(job, "local", job.encoding, job.summary, file.busy_s, time.monotonic() - began, ())
        return job.summary

    def _refer(self, job: Job, level: str, file: DurableFile) -> Unchanged:
        assert job.layout is not None
        found = self._incremental.refer(level, job.due, job.digests, job.layout, file.path.parent)
        job.unchanged[level] = found
        return found

    def _abort(self, job: Job, level: str, file: DurableFile) -> None:
        """Leave nothing of a part that does not come to be."""
        file.abort()
        if level in job.unchanged:
            remove_links(job.unchanged[level].names.values())

    def _note(
        self,
        job: Job,
        level: str,
        part: PartEncoding,
        summary: PartSummary,
        busy_s: float,
        seconds: float,
        remarks: tuple[str, ...],
    ) -> None:
        """A part is written."""
        written = summary.chunks["raw_length"][summary.chunks["base"] == 0].sum()
        self._compressing.completed(part, summary.nbytes, int(written), busy_s, seconds)
        job.pending.note_compression(level, (*part.reasons, *remarks))
        job.pending.note_cost(encoded_bytes=summary.encoded_bytes)
        job.pending.note_level(level, RUNNING, nbytes=summary.nbytes, referenced_bytes=summary.referenced_bytes)

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
            unchanged = self._refer(job, "persistent", file)
            summary, remarks = self._fill(job, file, encoding, unchanged)
            job.check_capture()
            file.commit()
        except BaseException:
            self._abort(job, "persistent", file)
            raise
        self._note(job, "persistent", encoding, summary, file.busy_s, time.monotonic() - began, remarks)
        return summary

    def _fill(
        self, job: Job, file: DurableFile, encoding: PartEncoding, unchanged: Unchanged
    ) -> tuple[PartSummary, tuple[str, ...]]:
        """From the local part if that works out, otherwise from staging memory if it is still there.

        Returns:
            What was written, and remarks on how.
        """
        if job.relay is not None:
            try:
                return self._follow(job, job.relay, file, encoding, unchanged)
            except (SourceLostError, CorruptFileError):
                if self._claim(job) is None:
                    raise
                job.relay.close()  # a file that was given up takes space as long as someone has it open
                file.restart()
        staged = self._claim(job)
        if staged is None:
            raise CheckpointError("the share is neither in staging memory nor in a local part")
        return write_part(staged, file, encoding.encoding, job.attempt, self._rank, unchanged), ()

    def _follow(
        self, job: Job, relay: Relay, file: DurableFile, encoding: PartEncoding, unchanged: Unchanged
    ) -> tuple[PartSummary, tuple[str, ...]]:
        """Copy the local part as it grows; chunks that only this level is to have encoded are encoded on the way.

        Where either part refers to other files, the one cannot be a copy of the other.
        """
        assert job.layout is not None and job.document is not None and job.encoding is not None
        refers = unchanged.references or job.unchanged["local"].references
        if refers or adds_to(encoding.chooser, job.encoding.chooser, job.layout):
            what = (job.layout, job.document, file, encoding.encoding, job.attempt, self._rank)
            summary = recode_part(relay, *what, self._behind, unchanged.references)
            relay.wait_for_end()  # the manifest will name the local part too
            return summary, ()
        found = copy_part(relay, file, self._behind)
        assert job.summary is not None
        check_copy(found, job.summary, str(self._local and self._local.part_path(job.attempt, self._rank)))
        return job.summary, ("a copy of the local part",)
