"""Loading: one part from its file into memory, every chunk of it checked and decoded.

Reading, checking and decoding go on at the same time, on a few threads. A part that is stored raw and lies in memory
already, on a tmpfs, is used where it lies.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deeppart.codec.raw import RawCodec
from deeppart.exchange.memory import Bytes
from deeppart.levels.mapped import lies_in_memory
from deeppart.model import Attempt
from deeppart.part import FileSource, MemorySource, PartReader
from deeppart.restart import Read

#: While one thread waits for storage, another can check what has come.
LEAST_THREADS = 2


@dataclass(slots=True)
class LoadedPart:
    """A part in memory, whose chunks have been checked and decoded.

    Attributes:
        reader: index, spans and meta; its source is closed, or in memory.
        raw: the raw stream.
        source: where the bytes of the file can be had again, if they are not those of ``raw``: its path, or memory.
    """

    reader: PartReader
    raw: Bytes
    source: str | MemorySource | None

    def chunk(self, index: int) -> Bytes:
        """The raw bytes of a chunk, where they lie."""
        start, stop = self.reader.raw_starts[index : index + 2].tolist()
        return self.raw[start:stop]

    def pieces(self) -> Iterator[memoryview | bytes]:
        """The bytes of the whole file, in order; those of an encoded part are read once more, and checked.

        Raises:
            FormatError, StorageError: they cannot be had again.
        """
        head, tail = self.reader.frame()
        yield head
        if self.source is None:
            yield self.raw.data
        elif isinstance(self.source, MemorySource):
            yield self.source.read_at(len(head), self.source.size - len(head) - len(tail))
        else:
            with FileSource(self.source) as source:
                for index, (offset, length) in enumerate(_places(self.reader)):
                    data = source.read_at(offset, length)
                    self.reader.check_chunk(index, data)
                    yield data
        yield tail


class OpenedPart:
    """A part whose header, footer and index are sound; a context manager that closes its file.

    Args:
        source: the bytes.
        read: which part, and where from.
        attempt: which checkpoint it must belong to.

    Attributes:
        room_bytes: memory that :meth:`load` needs.

    Raises:
        FormatError: it is damaged or not the part wanted.
        StorageError: it cannot be read.
    """

    def __init__(self, source: FileSource | MemorySource, read: Read, attempt: Attempt) -> None:
        self._source = source
        self._reader = PartReader(
            source,
            where=read.source.path,
            expected_attempt=attempt,
            expected_rank=read.part,
            expected_index_digest=read.source.index_digest,
        )
        self._stored_raw = bool((self._reader.chunks["codec"] == RawCodec.codec_id).all())
        self._in_place = self._stored_raw and (isinstance(source, MemorySource) or lies_in_memory(source.path))
        self.room_bytes = 0 if self._in_place else self._reader.raw_bytes

    def load(self, room: Bytes, threads: int) -> LoadedPart:
        """Bring it into memory and check every chunk.

        Args:
            room: ``room_bytes`` bytes for the raw stream.
            threads: that take part; at least :data:`LEAST_THREADS` do.

        Raises:
            FormatError: it is damaged.
            StorageError: it cannot be read.
        """
        places = _places(self._reader)
        mapped = self._source.mapped() if self._in_place else None
        if mapped is not None:
            first = places[0][0] if places else 0  # chunks lie back to back
            room = np.frombuffer(mapped, dtype=np.uint8)[first : first + self._reader.raw_bytes]
        scratch = threading.local()

        def bring(index: int) -> None:
            (offset, length), raw = places[index], part.chunk(index).data
            if mapped is not None:
                self._reader.check_chunk(index, raw)
            elif int(self._reader.chunks["codec"][index]) == RawCodec.codec_id:
                self._source.read_into(offset, raw)
                self._reader.check_chunk(index, raw)
            else:
                encoded = _scratch(scratch, length)
                self._source.read_into(offset, encoded)
                self._reader.decode_chunk(index, encoded, raw)

        again = None if self._stored_raw else self._source
        path = again.path if isinstance(again, FileSource) else again
        part = LoadedPart(self._reader, room[: self._reader.raw_bytes], path)
        with ThreadPoolExecutor(max(threads, LEAST_THREADS), "deeppart-load") as pool:
            try:
                for _ in pool.map(bring, range(len(places))):
                    pass
            except BaseException:
                pool.shutdown(cancel_futures=True)  # and waits: the memory is going to be used for something else
                raise
        return part


def load_part(
    source: FileSource | MemorySource, read: Read, attempt: Attempt, threads: int = LEAST_THREADS
) -> LoadedPart:
    """Bring one part into memory of its own and check every chunk.

    Raises:
        FormatError: it is damaged or not the part wanted.
        StorageError: it cannot be read.
    """
    opened = OpenedPart(source, read, attempt)
    return opened.load(np.empty(opened.room_bytes, dtype=np.uint8), threads)


def _places(reader: PartReader) -> list[tuple[int, int]]:
    """Offset and length of each chunk in the file."""
    table: npt.NDArray[np.void] = reader.chunks[["offset", "encoded_length"]]
    return [(offset, length) for offset, length in table.tolist()]


def _scratch(local: threading.local, length: int) -> memoryview:
    """Memory of the calling thread, for an encoded chunk."""
    memory: memoryview | None = getattr(local, "memory", None)
    if memory is None or len(memory) < length:
        memory = local.memory = np.empty(length, dtype=np.uint8).data
    return memory[:length]
