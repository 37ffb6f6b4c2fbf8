"""An open part whose chunks are checked first and used later, with little memory of their own.

A chunk that is stored raw in a file that lies in memory, or whose pages can be locked there, is used where it lies. Any
other is read twice, the second time out of the page cache, mostly, and decoded then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from deeppart._threads import on_threads
from deeppart.codec import RawCodec
from deeppart.errors import CorruptFileError, StorageError
from deeppart.mapped import memory_in_place, populate_pages
from deeppart.model import Attempt
from deeppart.nodes import Bytes
from deeppart.part import FileSource, MemorySource, PartReader, Signing, StoredBytes
from deeppart.plan.restart import Read

#: While one thread waits for storage, another checks chunks.
LEAST_THREADS = 2
#: Why bytes that were used in place may have changed; None if they have not.
Problem = CorruptFileError | StorageError | None
#: By chunk number of a part, whether the chunk is needed.
Chosen = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of a mapped file with the raw bytes that one rank has checked of a part; for other ranks of its node.

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


class CheckedPart:
    """An open part with a valid header, footer and index, of whose chunks this rank checks and uses a range.

    Its methods may be called by several threads.

    Attributes:
        reader: index, spans and meta.
        place: the range of the file where other processes of this node find the raw bytes of the chunks, or None.
    """

    def __init__(
        self,
        reader: PartReader,
        source: StoredBytes | MemorySource,
        *,
        may_share: bool,
        chunks: range | None = None,
        is_on_a_node: bool = False,
    ) -> None:
        """Map the chunks, if they may be used in place.

        Args:
            reader: of the part.
            source: its bytes, open.
            may_share: false if somebody might change the file between check and use, deliberately.
            chunks: those that this rank reads; None for all.
            is_on_a_node: see :class:`FileRange`.
        """
        self.reader, self._source, self._is_on_a_node = reader, source, is_on_a_node
        self._chunks = range(len(reader.chunks)) if chunks is None else chunks
        self._checked = np.zeros(len(reader.chunks), dtype=np.bool_)
        self._scratch = threading.local()
        rows = reader.chunks[self._chunks.start : self._chunks.stop]
        raw = (rows["base"] == 0) & (rows["codec"] == RawCodec.codec_id)
        self._memory: memoryview | None = None
        self.place: FileRange | None = None
        if not raw.any():
            return
        self._first = int(rows["offset"][raw].min())
        stop = int((rows["offset"] + rows["encoded_length"])[raw].max())
        if isinstance(source, MemorySource):
            self._memory = source.mapped(self._first, stop)
        elif may_share and isinstance(source, FileSource):
            self._memory = memory_in_place(source, self._first, stop)
            if raw.all() and self._memory is not None:
                begins, nbytes = int(reader.raw_starts[self._chunks.start]), stop - self._first
                self.place = FileRange(source.path, *source.identity, self._first, nbytes, begins, is_on_a_node)

    @classmethod
    def of(
        cls,
        source: StoredBytes | MemorySource,
        read: Read,
        attempt: Attempt,
        signing: Signing | None,
        rank: int | None = None,
    ) -> Self:
        """Open a part, and check its header, footer and index. ``rank`` reads a range of it (default: its reader)."""
        reader = PartReader(
            source,
            where=read.source.path,
            expected_attempt=attempt,
            expected_rank=read.part,
            expected_index_digest=read.source.index_digest,
            signing=signing,
        )
        reader.check_bases()
        chunks = read.chunks(reader.raw_starts.tolist())[read.reader if rank is None else rank]
        # A file can be changed between check and use by a forger: with keys, nothing is used in place.
        return cls(reader, source, may_share=signing is None, chunks=chunks, is_on_a_node=read.source.is_on_a_node)

    def check(self, chosen: Chosen | None = None, threads: int = 1) -> None:
        """See that chunks are what was stored: those of this rank, or the chosen ones among them. None is decoded."""
        needed = ~self._checked if chosen is None else chosen & ~self._checked
        wanted = [chunk for chunk in self._chunks if needed[chunk]]
        on_threads(self._check, wanted, max(threads, LEAST_THREADS), "deeppart-check")

    def _check(self, chunk: int) -> None:
        encoded = self._lying(chunk)
        if encoded is None:
            encoded = self._room(chunk)
            self.reader.read_encoded(chunk, encoded)
        self.reader.check_chunk(chunk, encoded)
        self._checked[chunk] = True

    def data(self, chunk: int) -> Bytes:
        """The raw bytes of a chunk: in place, or in new memory, checked again."""
        lying = self._to_use(chunk)
        if lying is not None:
            return np.frombuffer(lying, dtype=np.uint8)
        found = np.empty(int(self.reader.chunks["raw_length"][chunk]), dtype=np.uint8)
        self._read(chunk, found.data)
        return found

    def read_into(self, chunk: int, target: Bytes) -> None:
        """Copy the raw bytes of a chunk."""
        lying = self._to_use(chunk)
        if lying is None:
            self._read(chunk, target.data)
        else:
            np.copyto(target, np.frombuffer(lying, dtype=np.uint8))

    def _to_use(self, chunk: int) -> memoryview | None:
        """What :meth:`_lying` returns, of a chunk that was checked: nothing is used in place before that."""
        if not self._checked[chunk]:
            self._check(chunk)
        return self._lying(chunk)

    def _read(self, chunk: int, raw: memoryview) -> None:
        """Read, check and decode a chunk."""
        self.reader.read_into(chunk, raw, self._room(chunk))

    def _lying(self, chunk: int) -> memoryview | None:
        """The raw bytes where they lie, in memory; None if they do not, or may not be used there.

        Raises:
            StorageError: they cannot be read, or the file was truncated: an access would end the process by SIGBUS.
        """
        row = self.reader.chunks[chunk]
        if self._memory is None or row["base"] != 0 or row["codec"] != RawCodec.codec_id:
            return None
        offset, length = int(row["offset"]), int(row["encoded_length"])
        found = self._memory[offset - self._first : offset - self._first + length]
        # To ask for the length takes less time than to populate pages that are in place already.
        if isinstance(self._source, FileSource) and not (self._checked[chunk] and self._source.has_its_length()):
            populate_pages(np.frombuffer(found, dtype=np.uint8), self._source.path)
        return found

    def _room(self, chunk: int) -> memoryview:
        """Memory of this thread for the encoded bytes of one chunk at a time."""
        length = int(self.reader.chunks["encoded_length"][chunk])
        room: memoryview | None = getattr(self._scratch, "room", None)
        if room is None or len(room) < length:
            room = self._scratch.room = np.empty(length, dtype=np.uint8).data
        return room[:length]

    def problem(self) -> Problem:
        """After bytes have been used in place: why they may have changed since they were checked, or None.

        A superseded job that still runs on this node may retire the step that is being restored. It renames the file
        before it writes over it (``storage/spares.py``): a file that still has its name has not changed. If the file
        system cannot tell, the digests are checked again. Files of the persistent level are never written over.
        """
        if self._memory is None or not self._is_on_a_node or not isinstance(self._source, FileSource):
            return None
        try:
            return problem_of(self._source)
        except StorageError:
            return self._changed()

    def _changed(self) -> Problem:
        try:
            for chunk in np.flatnonzero(self._checked).tolist():
                if (lying := self._lying(chunk)) is not None:
                    self.reader.check_chunk(chunk, lying)
        except (CorruptFileError, StorageError) as error:
            return error
        return None

    def pieces(self) -> Iterator[memoryview | bytes]:
        """The bytes of the whole file, in order, read again and checked; the source may have been closed."""
        head, tail = self.reader.frame()
        yield head
        memory = self._source if isinstance(self._source, MemorySource) else None
        with nullcontext(memory) if memory is not None else self._source.reopen() as source:  # type: ignore[union-attr]
            for chunk in np.flatnonzero(self.reader.chunks["base"] == 0).tolist():
                row = self.reader.chunks[chunk]
                data = memoryview(source.read_at(int(row["offset"]), int(row["encoded_length"])))
                self.reader.check_chunk(chunk, data)
                yield data
        yield tail


def problem_of(file: FileSource) -> Problem:
    """Why the bytes of a file may have changed while its memory was in use (:meth:`CheckedPart.problem`), or None.

    Raises:
        StorageError: the file system cannot tell.
    """
    if file.has_its_name():
        return None
    return CorruptFileError(
        "a part file was removed or replaced while it was being used",
        where=file.path,
        todo="if another job on this node retires the step, end it",
    )
