"""Loads a part, or a range of its chunks, into memory, and checks and decodes every chunk.

Reading, checking and decoding overlap on a few threads. A part that is stored raw and already in memory, on a tmpfs or
in the page cache of a file system of this node, is used in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deeppart._threads import on_threads
from deeppart.codec import RawCodec
from deeppart.errors import CorruptFileError, StorageError
from deeppart.mapped import LockedFile, lies_in_memory, pin
from deeppart.model import Attempt
from deeppart.nodes import Bytes
from deeppart.part import FileSource, MemorySource, PartReader, Signing, StoredBytes
from deeppart.plan.restart import Read

#: While one thread waits for storage, another checks chunks.
LEAST_THREADS = 2
#: Why bytes that were used in place may have changed; None if they have not.
Problem = CorruptFileError | StorageError | None
#: By chunk number of a part, whether the chunk is read.
Chosen = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of a mapped file with the raw bytes that one rank has read of a part; for other ranks of its node.

    Attributes:
        path, device, inode: of the file.
        first, raw_bytes: the range in the file.
        raw_start: where the range begins in the raw bytes of the whole part.
        is_on_a_node: the file is on a node's storage, where other jobs may remove it.
    """

    path: str
    device: int
    inode: int
    first: int
    raw_bytes: int
    raw_start: int
    is_on_a_node: bool


@dataclass(slots=True)
class LoadedPart:
    """A part, or the chunks of one that this rank has read, checked and decoded in memory.

    Attributes:
        reader: index, spans and meta; its source is closed, or in memory.
        raw: the raw stream, from the first of the chunks on.
        source: the bytes of the file, to read it again if they are not ``raw``: its path, an object of another store,
            or memory.
        chunks: numbers of the chunks in memory; None for all.
        read: by chunk number, whether it was read and checked; None: all of ``chunks`` were.
        starts: where each of ``chunks`` begins in ``raw``, in bytes; None: as in the raw stream.
        used_in_place: the file whose mapping ``raw`` is, or None.
        place: the range of a file where other processes of this node find ``raw``, or None.
    """

    reader: PartReader
    raw: Bytes
    source: Path | StoredBytes | MemorySource | None
    used_in_place: FileSource | None = None
    place: FileRange | None = None
    chunks: range | None = None
    read: Chosen | None = None
    starts: npt.NDArray[np.int64] | None = None

    def problem(self) -> Problem:
        """After the bytes have been used: why they may have changed since they were checked, or None.

        A superseded job that still runs on this node may retire the step that is being restored. It renames the file
        before it writes over it (``storage/spares.py``): a file that still has its name has not changed. If the file
        system cannot tell, the digests are checked again.
        """
        try:
            return None if self.used_in_place is None else problem_of(self.used_in_place)
        except StorageError:
            return self._changed()

    def _changed(self) -> CorruptFileError | None:
        try:
            for index in range(len(self.reader.chunks)) if self.chunks is None else self.chunks:
                if self.read is None or self.read[index]:
                    self.reader.check_chunk(index, self.chunk(index).data)
        except CorruptFileError as error:
            return error
        return None

    def chunk(self, index: int) -> Bytes:
        """The raw bytes of a chunk, without a copy."""
        start, stop = self.reader.raw_starts[index : index + 2].tolist()
        if self.starts is not None:
            at = int(self.starts[index - (self.chunks.start if self.chunks else 0)])
            return self.raw[at : at + stop - start]
        here = int(self.reader.raw_starts[self.chunks.start]) if self.chunks else 0
        return self.raw[start - here : stop - here]

    def pieces(self) -> Iterator[memoryview | bytes]:
        """The bytes of the whole file, in order; bytes that are not in memory as stored are read again and checked."""
        head, tail = self.reader.frame()
        yield head
        if self.source is None:
            yield self.raw.data
            if (changed := self.problem()) is not None:
                raise changed
        elif isinstance(self.source, MemorySource):
            yield self.source.read_at(len(head), self.source.size - len(head) - len(tail))
        else:
            with FileSource(self.source) if isinstance(self.source, Path) else self.source.reopen() as source:
                for index in np.flatnonzero(self.reader.chunks["base"] == 0).tolist():
                    row = self.reader.chunks[index]
                    data = memoryview(source.read_at(int(row["offset"]), int(row["encoded_length"])))
                    self.reader.check_chunk(index, data)
                    yield data
        yield tail


def problem_of(file: FileSource) -> Problem:
    """Why the bytes of a file may have changed while its memory was in use (:meth:`LoadedPart.problem`), or None.

    Raises:
        StorageError: the file system cannot tell.
    """
    if file.has_its_name():
        return None
    return CorruptFileError(
        "a part file was removed while it was being used",
        found="another job on this node retires the step",
        where=file.path,
        todo="end the other job",
    )


class OpenedPart:
    """An open part with a valid header, footer and index."""

    def __init__(
        self,
        source: StoredBytes | MemorySource,
        read: Read,
        attempt: Attempt,
        signing: Signing | None,
        rank: int | None = None,
    ) -> None:
        self._source, self._is_on_a_node = source, read.source.is_on_a_node
        self._reader = PartReader(
            source,
            where=read.source.path,
            expected_attempt=attempt,
            expected_rank=read.part,
            expected_index_digest=read.source.index_digest,
            signing=signing,
        )
        self._reader.check_bases()
        raw_starts = self._reader.raw_starts.tolist()
        self._mine = read.chunks(raw_starts)[read.reader if rank is None else rank]
        raw_bytes = raw_starts[self._mine.stop] - raw_starts[self._mine.start]
        stored_raw = (self._reader.chunks["codec"] == RawCodec.codec_id).all()
        # True if the raw stream is the file's payload.
        self._is_payload = bool(stored_raw) and not self._reader.bases
        # A file can be changed between check and use by a forger: with keys, private memory is checked.
        may_share = self._is_payload and signing is None and raw_bytes > 0
        # Start of the raw bytes in the file, if they are there: chunks are contiguous.
        self._start = int(self._reader.chunks["offset"][self._mine.start]) if self._mine else 0
        self._stop = self._start + raw_bytes
        self._in_place = isinstance(source, MemorySource) and self._is_payload
        self._in_place |= may_share and isinstance(source, FileSource) and lies_in_memory(source.path)
        self._pinned: LockedFile | None = None
        if may_share and not self._in_place and isinstance(source, FileSource):
            self._pinned = pin(source, self._start, self._stop)
        self._raw_bytes = 0 if self._in_place or self._pinned is not None else raw_bytes

    @property
    def reader(self) -> PartReader:
        """The reader of its index."""
        return self._reader

    def room_bytes(self, chosen: Chosen | None = None) -> int:
        """Memory that :meth:`load` needs, in bytes."""
        if not self._raw_bytes or chosen is None:
            return self._raw_bytes
        return int(self._lengths(chosen).sum())

    def _lengths(self, chosen: Chosen) -> npt.NDArray[np.int64]:
        """Raw bytes of this rank's chosen chunks; 0 for other chunks."""
        mine = slice(self._mine.start, self._mine.stop)
        return np.where(chosen[mine], self._reader.chunks["raw_length"][mine], 0).astype(np.int64)

    def load(self, room: Bytes, threads: int, chosen: Chosen | None = None) -> LoadedPart:
        """Read the part into memory and check every chunk."""
        chunks = self._reader.chunks
        if chosen is not None and chosen[self._mine.start : self._mine.stop].all():
            chosen = None
        mapped = None
        if self._in_place and isinstance(self._source, FileSource | MemorySource):
            mapped = self._source.mapped(self._start, self._stop)
        if self._pinned is not None:
            mapped = self._pinned.memory
        if mapped is not None:
            room = np.frombuffer(mapped, dtype=np.uint8)

        def bring(index: int) -> None:
            raw = part.chunk(index).data
            if self._pinned is not None:
                self._pinned.populate(int(chunks["offset"][index]), len(raw))
            if mapped is not None:
                self._reader.check_chunk(index, raw)
            else:
                self._reader.read_into(index, raw)

        is_whole = len(self._mine) == len(chunks) and chosen is None
        starts = None
        if chosen is not None and mapped is None:
            lengths = self._lengths(chosen)
            starts = np.cumsum(lengths) - lengths
        again = None if self._is_payload and is_whole else self._source
        path = again.location if isinstance(again, FileSource) else again
        in_place, place = None, None
        if mapped is not None and isinstance(self._source, FileSource):
            file = self._source
            begins = int(self._reader.raw_starts[self._mine.start])
            place = FileRange(file.path, *file.identity, self._start, len(room), begins, self._is_on_a_node)
            in_place = file if self._is_on_a_node else None  # files of the persistent level are never written over
        part = LoadedPart(self._reader, room, path, in_place, place, self._mine, chosen, starts)
        wanted = self._mine if chosen is None else [index for index in self._mine if chosen[index]]
        on_threads(bring, wanted, max(threads, LEAST_THREADS), "deeppart-load")
        return part


def load_part(
    source: FileSource | MemorySource,
    read: Read,
    attempt: Attempt,
    signing: Signing | None,
    threads: int = LEAST_THREADS,
) -> LoadedPart:
    """Read one part into newly allocated memory and check every chunk."""
    opened = OpenedPart(source, read, attempt, signing)
    return opened.load(np.empty(opened.room_bytes(), dtype=np.uint8), threads)
