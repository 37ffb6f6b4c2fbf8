"""A part file that one thread writes while another copies it.

The copy to the next level does not wait for the first level to end: it follows the file as it grows.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from deeppart import access
from deeppart.access import storage_error
from deeppart.access.hanging import storage_operation
from deeppart.errors import StorageError
from deeppart.part import ChunkPlace, PartSummary
from deeppart.save.encoding import Encoding
from deeppart.storage import DurableFile

#: Readers check at least this often for more bytes; they are woken when there are some.
_LOOK_S = 0.05


class SourceLostError(StorageError):
    """The file to copy cannot be read, or was never completed."""


class GrowingFile:
    """A sink that writes to a file, and lets another thread read it from the start meanwhile.

    Attributes:
        file: the file.
        encoding: how the part in it is encoded.
    """

    def __init__(self, file: DurableFile, encoding: Encoding) -> None:
        self.file, self.encoding = file, encoding
        #: Guards the attributes after it; :meth:`close` may be called while another thread reads.
        self._changed = threading.Condition()
        self._written = 0
        self._chunks: list[ChunkPlace] = []
        self._summary: PartSummary | None = None
        self._failed = self._closed = False
        self._reading = 0
        self._path = file.temporary
        try:
            self._fd = access.open_file(self._path)
        except OSError as error:
            raise storage_error("cannot read a checkpoint file back", error, self._path) from error

    def write(self, buffer: memoryview | bytes, /) -> None:
        """Append to the file."""
        self.file.write(buffer)
        with self._changed:
            self._written = self.file.nbytes
            self._changed.notify_all()

    def note_chunk(self, place: ChunkPlace) -> None:
        """A chunk of the part has been written."""
        with self._changed:
            self._chunks.append(place)
            self._changed.notify_all()

    def chunk(self, number: int) -> ChunkPlace:
        """The place of chunk ``number``; waits until it has been written."""
        with self._changed:
            self._wait(lambda: number < len(self._chunks))
            if self._failed or number >= len(self._chunks):
                raise self._not_completed()
            return self._chunks[number]

    def complete(self, summary: PartSummary) -> None:
        """Everything has been written."""
        with self._changed:
            self._summary = summary
            self._changed.notify_all()

    def give_up(self) -> None:
        """Nothing more will be written: if the file is not complete, readers fail."""
        with self._changed:
            self._failed = self._summary is None
            self._changed.notify_all()

    @property
    def summary(self) -> PartSummary | None:
        """The summary of the part, once it is complete."""
        with self._changed:
            return self._summary

    def wait_for_end(self) -> None:
        """Wait until the file is complete, or has failed."""
        with self._changed:
            self._wait(lambda: False)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Read from ``offset``, waiting until the buffer can be filled or the file is complete."""
        with self._changed:
            self._wait(lambda: self._written >= offset + len(buffer))
            if self._failed:
                raise self._not_completed()
            buffer = buffer[: max(0, self._written - offset)]  # after that, a recycled file may have old bytes
        return self._read(offset, buffer)

    def read_chunk(self, place: ChunkPlace, buffer: memoryview) -> None:
        """Read the bytes of a chunk that :meth:`chunk` has returned."""
        if self._read(place.offset, buffer) != len(buffer):
            raise SourceLostError("the part file to copy is shorter than it was", where=str(self.file.path))

    def _wait(self, enough: Callable[[], bool]) -> None:
        """Wait, with the lock held, until ``enough`` is true, or nothing more will be written."""
        while not self._failed and self._summary is None and not enough():
            self._changed.wait(_LOOK_S)

    def _not_completed(self) -> SourceLostError:
        return SourceLostError("the part file to copy was not completed", where=str(self.file.path))

    def _read(self, offset: int, buffer: memoryview) -> int:
        count = 0
        with self._changed:
            if self._closed:
                raise self._not_completed()
            self._reading += 1
        try:
            with storage_operation("read", self._path):
                while count < len(buffer) and (got := os.preadv(self._fd, [buffer[count:]], offset + count)):
                    count += got
        except OSError as error:
            raise SourceLostError(
                "the part file to copy cannot be read",
                errno=error.errno,
                found=error.strerror,
                where=str(self.file.path),
            ) from error
        finally:
            with self._changed:
                self._reading -= 1
                self._close_if_unused()
        return count

    def close(self) -> None:
        """End reading: waiting readers fail, and a read in progress ends first."""
        self.give_up()
        with self._changed:
            self._closed = True
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        """Close the descriptor; errors do not matter, since nothing was written through it."""
        if self._closed and not self._reading and self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1
