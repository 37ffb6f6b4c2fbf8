"""Chunks of a part that are checked first and used later, with little memory of their own.

A chunk that is stored raw, in a file that lies in memory or whose pages can be locked there, is used where it lies. Any
other is read twice, and checked both times: the second time it comes out of the page cache, mostly, into memory that
is still warm, which takes less time than fresh memory for all of them.
"""

from __future__ import annotations

import numpy as np

from deeppart.codec.base import RawCodec
from deeppart.errors import StorageError
from deeppart.part import FileSource, PartReader
from deeppart.state.tree.leaves import Bytes
from deeppart.storage.mapped import LockedFile, bring_pages, lies_in_memory, pin


class ChunkAccess:
    """The chunks of a part."""

    def __init__(self, reader: PartReader, source: FileSource, *, may_share: bool) -> None:
        self._reader = reader
        self._path = source.path
        self._pinned: LockedFile | None = None
        self._memory: memoryview | None = None
        self._scratch = np.empty(0, dtype=np.uint8)
        if may_share and source.size:
            try:
                if lies_in_memory(source.file_path):
                    self._memory = source.mapped(0, source.size)
                else:
                    self._pinned = pin(source, 0, source.size)
                    self._memory = None if self._pinned is None else self._pinned.memory
            except StorageError:  # no address space: it is read
                self._memory = None

    def check(self, chunk: int) -> None:
        """See that a chunk is what was saved."""
        lying = self._lying(chunk)
        if lying is None:
            lying = self._room(chunk)
            self._reader.read_encoded(chunk, lying)
        elif self._pinned is not None:
            self._pinned.bring(int(self._reader.chunks["offset"][chunk]), len(lying))
        else:
            bring_pages(np.frombuffer(lying, dtype=np.uint8), self._path)
        self._reader.check_chunk(chunk, lying)

    def data(self, chunk: int) -> Bytes:
        """The raw bytes of a chunk that was checked, until the next call."""
        lying = self._lying(chunk)
        if lying is None:
            lying = self._reader.read_chunk(chunk, self._room(chunk))
        return np.frombuffer(lying, dtype=np.uint8)

    def _lying(self, chunk: int) -> memoryview | None:
        """The raw bytes where they lie in the file; None if they do not, or may not be used there."""
        row = self._reader.chunks[chunk]
        if self._memory is None or row["base"] != 0 or row["codec"] != RawCodec.codec_id:
            return None
        start = int(row["offset"])
        return self._memory[start : start + int(row["encoded_length"])]

    def _room(self, chunk: int) -> memoryview:
        length = int(self._reader.chunks["encoded_length"][chunk])
        if len(self._scratch) < length:
            self._scratch = np.empty(length, dtype=np.uint8)
        return self._scratch.data[:length]
