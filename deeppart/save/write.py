"""Writes one rank's share of one checkpoint into the part files of its levels; and on rank 0 its manifest.

The local part file is written from staging memory, and the copy to the persistent level follows it as it grows. Without
a local part, or if it cannot be completed or read back, the persistent part is written from staging memory.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from types import MappingProxyType

import xxhash

from deeppart._gc import collection_paused
from deeppart.codec import RawCodec
from deeppart.comm import CommitMayStandError
from deeppart.errors import CheckpointError, CorruptFileError, DirectoryInUseError, StorageError
from deeppart.model import LIBRARY, Attempt, Level, Manifest, PartRecord
from deeppart.part import (
    FLAG_PER_RANK,
    ChunkPlace,
    PartSummary,
    PartWriter,
    Sink,
    check_strong_digest,
    encode_manifest,
    part_file_name,
    step_name,
)
from deeppart.pending import RUNNING
from deeppart.save.encoding import Chunk, Compressing, Encoding, adds_to
from deeppart.save.growing_file import GrowingFile, SourceLostError
from deeppart.save.incremental import Incremental
from deeppart.save.job import Job, Opened, Staged
from deeppart.save.keeping import Keeping
from deeppart.save.workers import Workers, WriteBehind
from deeppart.state.capture import ShareLayout
from deeppart.state.document import PartDocument
from deeppart.storage import DirectoryOwner, MemoryLevel, NodeLevel, PersistentLevel, Writer


@dataclass(frozen=True, slots=True)
class RankStorage:
    """The levels to which a rank writes parts.

    Attributes:
        rank: the rank.
        local: the local level, or None without one.
        persistent: the persistent level.
        owner: the directory's lock, on rank 0.
        memory: where shares are staged, if that outlives the rank.
    """

    rank: int
    local: NodeLevel | None
    persistent: PersistentLevel
    owner: DirectoryOwner | None = None
    memory: MemoryLevel | None = None

    def discard_part(self, level: str, attempt: Attempt) -> None:
        """Remove the rank's part of a checkpoint at a level, as far as possible."""
        name = part_file_name(self.rank, attempt.world_size)
        at = self.local if level == Level.LOCAL and self.local is not None else self.persistent
        with contextlib.suppress(StorageError):
            at.store.delete(step_name(attempt.key), [name], durable=False)


#: Errors from which network file systems and devices recover; then the persistent part is retried after these pauses.
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
_NOTHING: Mapping[int, ChunkPlace] = MappingProxyType({})


class ShareWriter:
    """Writes the shares of one rank, and the manifests of rank 0."""

    def __init__(
        self,
        storage: RankStorage,
        compressing: Compressing,
        incremental: Incremental,
        behind: Workers,
        keeping: Keeping,
    ) -> None:
        self._storage, self._compressing = storage, compressing
        self._incremental, self._behind, self._keeping = incremental, behind, keeping

    def prepare(self, job: Job) -> list[bytes] | None:
        """Digests of a captured share's chunks, if some chunks seem to be unchanged; otherwise None."""
        staged = job.lease.memory
        if staged is None:
            return None
        self._compressing.try_new_dtypes(staged.layout, staged.data.data)
        return self._incremental.digests(staged, job.due)

    def complete_in_memory(self, job: Job) -> None:
        """Make a part of the share in staging memory, if that outlives the rank."""
        memory, staged = self._storage.memory, job.lease.memory
        if memory is None or staged is None or not memory.holds(staged.data):
            return
        write_part(staged, memory.sink(), self._compressing.raw(), job.attempt, self._storage.rank)
        job.check_capture()
        memory.name(job.attempt, self._storage.rank)

    def open_local(self, job: Job, level: NodeLevel) -> GrowingFile:
        """Begin the local part file."""
        layout, _ = job.description()
        encoding = self._compressing.begin(Level.LOCAL, layout)
        file = level.open_part(job.attempt, self._storage.rank)
        try:
            return GrowingFile(file, encoding)
        except BaseException:
            file.abort()
            raise

    def write_local(self, job: Job, part: GrowingFile, digests: Sequence[bytes] | None) -> PartSummary:
        """Write and name the local part file; it is removed if that fails."""
        began = time.monotonic()
        try:
            staged = job.lease.memory
            if staged is None:
                raise CheckpointError("the share is not in staging memory")
            summary = write_part(staged, part, part.encoding, job.attempt, self._storage.rank, digests)
            job.check_capture()
            part.complete(summary)
            part.file.commit()
            self._note(job, Level.LOCAL, part.encoding, summary, part.file.busy_s, time.monotonic() - began)
            return summary
        except BaseException:
            part.give_up()
            part.file.abort()
            raise

    def _note(
        self,
        job: Job,
        level: str,
        encoding: Encoding,
        summary: PartSummary,
        busy_s: float,
        seconds: float,
        remarks: tuple[str, ...] = (),
    ) -> None:
        """Report a written part."""
        written = summary.chunks["raw_length"][summary.chunks["base"] == 0].sum()
        self._compressing.completed(level, encoding, summary.nbytes, int(written), busy_s, seconds)
        job.pending.note_compression(level, (*encoding.reasons, *remarks))
        job.pending.note(encoded_bytes=summary.encoded_bytes)
        job.pending.note_level(level, RUNNING, nbytes=summary.nbytes, referenced_bytes=summary.referenced_bytes)

    def write_persistent(self, job: Job, opened: Opened) -> PartSummary:
        """Copy the local part, or write from staging memory; retried after a transient error."""
        if opened.failure is not None:
            raise opened.failure
        for pause_s in (*RETRY_PAUSES_S, None):
            before = self._keeping.removed_count
            try:
                return self._write_persistent_once(job, opened)
            except StorageError as error:
                if pause_s is None or not (error.errno in PASSING_ERRORS or self._keeping.made_room(error, before)):
                    raise
                job.pending.add(retries=1)
                time.sleep(pause_s)
        raise AssertionError("the last try returns or raises")

    def _write_persistent_once(self, job: Job, opened: Opened) -> PartSummary:
        layout, _ = job.description()
        encoding = self._compressing.begin(Level.PERSISTENT, layout)
        persistent, rank = self._storage.persistent, self._storage.rank
        file = persistent.open_part(job.attempt, rank)
        began = time.monotonic()
        try:
            references = self._incremental.refer(
                opened.digests, layout.chunks, lambda base: persistent.holds(base, job.attempt, rank)
            )
            summary, remarks = self._fill(job, opened, file, encoding, references)
            job.check_capture()
            file.commit()
            self._note(job, Level.PERSISTENT, encoding, summary, file.busy_s, time.monotonic() - began, remarks)
            return summary
        except BaseException:
            file.abort()
            raise

    def _fill(
        self, job: Job, opened: Opened, file: Writer, encoding: Encoding, references: Mapping[int, ChunkPlace]
    ) -> tuple[PartSummary, tuple[str, ...]]:
        """Fill the file from the local part if possible, otherwise from staging memory if it is still available."""
        if opened.local is not None:
            try:
                return self._follow(job, opened.local, file, encoding, references)
            except (SourceLostError, CorruptFileError):
                if job.lease.claim() is None:
                    raise
                opened.local.close()  # an abandoned file takes space as long as it is open
                file.restart()
        staged = job.lease.claim()
        if staged is None:
            raise CheckpointError("the share is neither in staging memory nor in a local part")
        return write_part(staged, file, encoding, job.attempt, self._storage.rank, opened.digests, references), ()

    def _follow(
        self, job: Job, local: GrowingFile, file: Writer, encoding: Encoding, references: Mapping[int, ChunkPlace]
    ) -> tuple[PartSummary, tuple[str, ...]]:
        """Copy the local part as it grows, and encode chunks that only this level encodes.

        A part that refers to earlier parts is no copy.
        """
        layout, document = job.description()
        if references or adds_to(encoding.chooser, local.encoding.chooser, layout):
            what = (layout, document, file, encoding, job.attempt, self._storage.rank)
            summary = recode_part(local, *what, self._behind, references)
            local.wait_for_end()  # the manifest names the local part, too
            return summary, ()
        found, copied = copy_part(local, file, self._behind), local.summary
        if copied is None:  # its end was read, as was waited for above
            raise SourceLostError("the part file to copy was not completed", where=str(local.file.path))
        check_copy(found, copied, str(local.file.path))
        return copied, ("a copy of the local part",)

    def commit(self, job: Job, parts: list[PartRecord]) -> None:
        """Rank 0: create the manifest.

        If another job took over the directory meanwhile without having seen the commit, the manifest is removed again:
        that job continues from an older step, and must not find this one beside its own later steps.
        """
        owner, persistent = self._storage.owner, self._storage.persistent
        assert owner is not None
        owner.check()
        try:
            self._put_manifest(job, parts, owner)
        except Exception as error:
            if persistent.may_be_committed(job.attempt.key):
                raise CommitMayStandError("the manifest may be there, and a restart may take the step") from error
            raise

    def _put_manifest(self, job: Job, parts: list[PartRecord], owner: DirectoryOwner) -> None:
        (_, document), persistent = job.description(), self._storage.persistent
        with collection_paused():
            created = owner.clock.now()
            manifest = Manifest(job.attempt, created, LIBRARY, tuple(parts), document.structure(), document.compared)
            data = encode_manifest(manifest, persistent.signing)
        before = self._keeping.removed_count
        try:
            persistent.commit(job.attempt.key, data)
        except StorageError as error:
            if not self._keeping.made_room(error, before):
                raise
            persistent.commit(job.attempt.key, data)
        try:
            owner.check_commit(job.attempt.key)
        except DirectoryInUseError:
            persistent.withdraw(job.attempt.key)
            raise


def write_part(
    staged: Staged,
    sink: Sink,
    encoding: Encoding,
    attempt: Attempt,
    rank: int,
    digests: Sequence[bytes] | None = None,
    references: Mapping[int, ChunkPlace] = _NOTHING,
) -> PartSummary:
    """Encode a share chunk by chunk into a file, which is not yet named."""
    data = staged.data.data

    def chunks() -> Iterator[Chunk]:
        for number, plan in enumerate(staged.layout.chunks):
            digest = None if digests is None else digests[number]
            raw = data[plan.start : plan.start + plan.length]
            yield Chunk(raw, plan.dtype, None, digest, references.get(number))

    return write_chunks(chunks(), staged.layout, staged.document, sink, encoding, attempt, rank)


def recode_part(
    growing: GrowingFile,
    layout: ShareLayout,
    document: PartDocument,
    sink: Sink,
    encoding: Encoding,
    attempt: Attempt,
    rank: int,
    behind: Workers,
    references: Mapping[int, ChunkPlace] = _NOTHING,
) -> PartSummary:
    """Write a part file again for another level, while it is being written: raw chunks are encoded."""
    chunks = _stored_chunks(growing, layout, encoding.encoders.most_ahead + 1, references)
    with WriteBehind(sink, behind) as ahead:
        return write_chunks(chunks, layout, document, ahead, encoding, attempt, rank)


def write_chunks(
    chunks: Iterable[Chunk],
    layout: ShareLayout,
    document: PartDocument,
    sink: Sink,
    encoding: Encoding,
    attempt: Attempt,
    rank: int,
) -> PartSummary:
    """Encode chunks into a file, which is not yet named, in the order of the layout."""
    signing = encoding.signing
    writer = PartWriter(sink, attempt, rank, signing=signing)
    watch = None if encoding.tallies is None else encoding.tallies.note
    running = encoding.encoders.run(chunks, encoding.chooser, watch, signed=signing is not None)
    with closing(running) as encoded_chunks:
        for plan, encoded in zip(layout.chunks, encoded_chunks, strict=True):
            flags = FLAG_PER_RANK if plan.per_rank else 0
            if isinstance(encoded, ChunkPlace):
                place = writer.add_reference(plan.length, encoded, dtype=plan.dtype, flags=flags)
            else:
                place = writer.add_chunk(plan.length, encoded, dtype=plan.dtype, flags=flags)
            if isinstance(sink, GrowingFile):
                sink.note_chunk(place)
    return writer.finish(document.span_table(layout.spans), document.meta())


def _stored_chunks(
    growing: GrowingFile, layout: ShareLayout, rooms: int, references: Mapping[int, ChunkPlace]
) -> Iterator[Chunk]:
    """The chunks of a part file as stored, each in one of ``rooms`` buffers that are reused."""
    memory = [memoryview(mmap.mmap(-1, max(1, *(chunk.length for chunk in layout.chunks)))) for _ in range(rooms)]
    for number, plan in enumerate(layout.chunks):
        if number in references:
            yield Chunk(memory[0][:0], plan.dtype, place=references[number])
            continue
        place = growing.chunk(number)
        data = memory[number % rooms][: place.nbytes]
        growing.read_chunk(place, data)
        where = f"chunk {number} of {len(layout.chunks)}, bytes {place.offset} to {place.offset + place.nbytes}"
        if xxhash.xxh3_128_digest(data) != place.encoded.digest:
            raise CorruptFileError(
                "a chunk of a local part file changed between being written and being read back",
                expected=f"xxh3-128 {(place.encoded.digest or b'').hex()}",
                found=xxhash.xxh3_128_hexdigest(data),
                where=where,
                todo="suspect the node's storage or memory",
            )
        if place.encoded.strong_digest is not None:  # only captured bytes may be signed
            check_strong_digest(data, place.encoded.strong_digest, where=where)
        stored = replace(place.encoded, data=data)
        encoded = None if stored.codec_id == RawCodec.codec_id else stored
        yield Chunk(data, plan.dtype, encoded, stored.raw_digest, strong_digest=stored.strong_digest)


def copy_part(growing: GrowingFile, sink: Sink, behind: Workers) -> str:
    """Copy a part file to another level as it is being written."""
    digest = xxhash.xxh3_128()
    offset = 0
    with WriteBehind(sink, behind) as ahead:
        while count := growing.read_into(offset, room := ahead.room()):
            digest.update(room[:count])
            ahead.pass_on(count)
            offset += count
    return digest.hexdigest()


def check_copy(found: str, summary: PartSummary, where: str) -> None:
    """Check that a copy has the bytes that were written."""
    if found != summary.digest:
        raise CorruptFileError(
            "a local part file changed between being written and being copied",
            expected=f"xxh3-128 {summary.digest}",
            found=found,
            where=where,
            todo="suspect the node's storage or memory",
        )
