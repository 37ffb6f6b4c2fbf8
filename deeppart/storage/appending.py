"""Appending to an open file: block by block, around the page cache where the file was opened so.

Large sequential writes that bypass the page cache (``O_DIRECT``) are 2-3 times faster on the machines measured than
buffered ones, and take no processor time from training (docs/benchmarks.md).
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deeppart.access.hanging import call
from deeppart.storage.blocks import block_memory
from deeppart.storage.rate import RateLimit
from deeppart.storage.refusals import storage_error

#: Bytes gathered before one direct write; also the unit in which a bandwidth limit is applied.
BLOCK_BYTES = 8 << 20
#: At least this much that is aligned in memory and in the file is written from where it lies, without a copy.
AS_IT_LIES_BYTES = 1 << 20
#: Alignment of direct writes: no file system in use asks for more.
ALIGNMENT = 4096
#: Writeback of buffered files is started this often, so that the final sync has little left to do.
SYNC_EVERY_BYTES = 256 << 20

#: Refusals that mean "not with O_DIRECT here" rather than "not at all".
NO_DIRECT = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
#: No space, or no more of it for this user.
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def _is_aligned(data: npt.NDArray[np.uint8]) -> bool:
    return int(data.ctypes.data) % ALIGNMENT == 0


class Appending(ABC):
    """What becomes a part: a file, or a section of one. Bytes are appended; then it is committed, or given up.

    Args:
        path: where it will be found, for whoever reads it.
        temporary: the file that is written to.
        direct: bypass the page cache if the file system can.
        limit: bandwidth limit to obey, or None.

    Attributes:
        path, temporary: as given.
        nbytes: bytes written so far.
        busy_s: seconds spent on writing them, and on making them durable.

    Raises:
        StorageError: from every method, when the operating system refuses.
    """

    def __init__(self, path: Path, temporary: Path, *, direct: bool, limit: RateLimit | None) -> None:
        self.path, self.temporary = path, temporary
        self.nbytes = 0
        self.busy_s = 0.0
        self._limit = limit
        self._since_sync = 0
        self._block = block_memory(BLOCK_BYTES) if direct else None
        self._filled = 0
        self._fd, self._direct = -1, False

    @abstractmethod
    def commit(self) -> None:
        """Make durable what was written, and have it found under its path if nothing else decides on that."""

    @abstractmethod
    def restart(self) -> None:
        """Forget what was written and begin again."""

    @abstractmethod
    def abort(self) -> None:
        """Give up, as far as the system lets us; a second call does nothing."""

    def write(self, buffer: memoryview | bytes, /) -> None:
        """Append all of the buffer."""
        began = time.monotonic()
        self._append(memoryview(buffer).cast("B"))
        self.busy_s += time.monotonic() - began

    def _append(self, data: memoryview) -> None:
        memory = self._block
        if memory is None:
            self._write_out(data)
            return
        block = np.frombuffer(memory, dtype=np.uint8)  # a copy through numpy lets other threads run
        source = np.frombuffer(data, dtype=np.uint8)
        at = 0
        while at < len(source):
            count = min(len(source) - at, BLOCK_BYTES) // ALIGNMENT * ALIGNMENT
            if self._direct and count >= AS_IT_LIES_BYTES and not self._filled % ALIGNMENT and _is_aligned(source[at:]):
                if self._filled:
                    self._flush_block(memory, self._filled)
                self._write_out(data[at : at + count])
                at += count
                continue
            count = min(BLOCK_BYTES - self._filled, len(source) - at)
            block[self._filled : self._filled + count] = source[at : at + count]
            self._filled += count
            at += count
            if self._filled == BLOCK_BYTES:
                self._flush_block(memory, BLOCK_BYTES)

    def _flush(self) -> None:
        """Write out what has been gathered."""
        if self._block is not None and self._filled:
            self._flush_block(self._block, self._filled)

    def _flush_block(self, memory: memoryview, filled: int) -> None:
        """Write the block out; direct writes take whole multiples of the alignment, the tail goes through the cache."""
        aligned = filled - filled % ALIGNMENT if self._direct else filled
        view = memoryview(memory)
        try:
            self._write_out(view[:aligned])
            if aligned < filled:
                self._leave_direct()
                self._write_out(view[aligned:filled])
        finally:
            view.release()
        self._filled = 0

    def _leave_direct(self) -> None:
        fcntl.fcntl(self._fd, fcntl.F_SETFL, fcntl.fcntl(self._fd, fcntl.F_GETFL) & ~os.O_DIRECT)
        self._direct = False

    def _make_space(self) -> bool:
        """Called where there is no space left: True if some was given back, and it is worth to try again."""
        return False

    def _put(self, data: memoryview) -> memoryview:
        """Put bytes where they belong without a system call, as far as that is possible; returns the rest."""
        return data

    def _write_out(self, data: memoryview) -> None:
        data = self._put(data)
        while data:
            piece = data[:BLOCK_BYTES]
            if self._limit is not None:
                self._limit.take(len(piece))
            try:
                written = call("write", self.temporary, self._fd, piece)
                self._start_writeback(written)
            except OSError as error:
                if self._direct and error.errno in NO_DIRECT:
                    self._leave_direct()
                    continue
                if error.errno in NO_SPACE and self._make_space():
                    continue
                raise storage_error("cannot write a checkpoint file", error, self.temporary) from error
            if self._direct and written % ALIGNMENT:
                self._leave_direct()  # the file system took part of it: the rest is no longer aligned
            self.nbytes += written
            data = data[written:]

    def _start_writeback(self, written: int) -> None:
        self._since_sync += written
        if self._limit is not None and not self._direct and self._since_sync >= SYNC_EVERY_BYTES:
            call("fdatasync", self.temporary, self._fd)
            self._since_sync = 0
