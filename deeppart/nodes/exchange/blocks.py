"""Blocks of files, for sending and for checking: mapped where the file lies in memory anyway, else read."""

from __future__ import annotations

import contextlib
import os
from types import TracebackType

from deeppart import access
from deeppart.nodes.exchange.memory import Bytes
from deeppart.part import FileSource
from deeppart.storage.mapped import file_memory, lies_in_memory


class Blocks:
    """A file, block by block. A context manager.

    On a tmpfs, reading a block by ``pread`` costs as much as sending it; mapping costs nearly nothing. The mapping is
    one that could be written to, and never is: networks register memory for writing, whatever it is used for.
    """

    def __init__(self, path: str) -> None:
        self.source = FileSource(path)
        self._fd = -1
        if lies_in_memory(path):
            with contextlib.suppress(OSError):  # not ours to write: then it is read
                self._fd = access.open_file(path, os.O_RDWR, over=False)

    def get(self, offset: int, length: int, memory: Bytes) -> Bytes:
        """The bytes from ``offset``, in ``memory`` or where they lie; not to be written to."""
        there = file_memory(self._fd, offset, length) if self._fd >= 0 and length else None
        if there is not None:
            return there
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
