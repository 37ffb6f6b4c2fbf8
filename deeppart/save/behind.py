"""Writes behind: what goes into a sink is gathered in blocks, each written while the next is filled.

The device works while the processor reads, checks and digests what comes next.
"""

from __future__ import annotations

from concurrent.futures import Future
from types import TracebackType

import numpy as np

from deeppart.part import Sink
from deeppart.save.workers import Workers
from deeppart.storage.files import BLOCK_BYTES, block_memory


class WriteBehind:
    """A sink, to be used in a ``with`` block, that passes everything on to another, in blocks, on another thread.

    All of it has been written when the block is left without an error. What the other sink raises comes out of a later
    call, or at the end. Memory: two blocks of 8 MiB, aligned to pages.
    """

    def __init__(self, sink: Sink, workers: Workers) -> None:
        self._sink, self._workers = sink, workers
        self._filling, self._writing = block_memory(BLOCK_BYTES), block_memory(BLOCK_BYTES)
        self._filled = 0
        self._written: Future[object] | None = None

    def room(self) -> memoryview:
        """Memory that can be filled instead of writing; what was filled is to be told to :meth:`pass_on`."""
        return self._filling[self._filled :]

    def pass_on(self, length: int) -> None:
        """Note that so many bytes of the buffer have been filled."""
        self._filled += length
        if self._filled == BLOCK_BYTES:
            self._flush()

    def write(self, buffer: memoryview | bytes, /) -> None:
        """Append all of the buffer."""
        source = np.frombuffer(buffer, dtype=np.uint8)
        while len(source):
            room = np.frombuffer(self.room(), dtype=np.uint8)
            count = min(len(room), len(source))
            room[:count] = source[:count]  # a copy through numpy lets other threads run
            self.pass_on(count)
            source = source[count:]

    def _flush(self) -> None:
        self._wait()
        self._filling, self._writing = self._writing, self._filling
        self._written = self._workers.submit(self._sink.write, self._writing[: self._filled])
        self._filled = 0

    def _wait(self) -> None:
        if self._written is not None:
            self._written.result()

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            if self._filled:
                self._flush()
            self._wait()
        elif self._written is not None:
            self._written.exception()  # waits: what is on its way must not go to whoever has the file's number next
