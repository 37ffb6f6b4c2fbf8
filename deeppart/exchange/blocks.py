"""Blocks of files, for sending and for checking: mapped where the file lies in memory anyway, else read."""

from __future__ import annotations

import contextlib
import mmap
import os
from types import TracebackType

import numpy as np

from deeppart.exchange.memory import Bytes
from deeppart.levels.files import lies_in_memory
from deeppart.part import FileSource

_SHARED_AND_THERE = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)


class Blocks:
    """A file, block by block. A context manager.

    On a tmpfs, reading a block by ``pread`` costs as much as sending it; mapping costs nearly nothing. The mapping is
    one that could be written to, and never is: networks register memory for writing, whatever it is used for.

    Args:
        path: the file.

    Raises:
        StorageError: it cannot be opened. CorruptFileError: it is not a regular file.
    """

    def __init__(self, path: str) -> None:
        self.source = FileSource(path)
        self._fd = -1
        if lies_in_memory(path):
            with contextlib.suppress(OSError):  # not ours to write: then it is read
                self._fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)

    def get(self, offset: int, length: int, memory: Bytes) -> Bytes:
        """The bytes from ``offset``, in ``memory`` or where they lie; not to be written to.

        Raises:
            StorageError: they cannot be read. CorruptFileError: the file ends before that.
        """
        if self._fd >= 0 and length:
            start = offset - offset % mmap.ALLOCATIONGRANULARITY
            try:
                if offset + length <= os.fstat(self._fd).st_size:
                    window = mmap.mmap(self._fd, offset - start + length, flags=_SHARED_AND_THERE, offset=start)
                    return np.frombuffer(window, dtype=np.uint8)[offset - start :]
            except (OSError, ValueError):
                pass  # too many mappings, or no address space: read it
        self.source.read_into(offset, memory[:length].data)
        return memory[:length]

    def close(self) -> None:
        """Close the file; blocks that were given out stay valid."""
        self.source.close()
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __enter__(self) -> Blocks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
