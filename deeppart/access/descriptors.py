"""File descriptors that are closed with their last reference, and a limit of open files that is raised when reached.

The default limit (``ulimit -n``) on Linux is 1,024 files, but a job of 4,096 ranks has 4,096 parts and their bases.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TypeVar

from deeppart.access.hanging import call, storage_operation

T = TypeVar("T")


def close_descriptor(descriptor: int) -> None:
    """Close a descriptor and ignore errors: everything written through it has been synced before."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


class Descriptor:
    """A descriptor that is closed with its last reference. A context manager."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        """Close the descriptor now. Only if no other thread can be using it."""
        descriptor, self.fd = self.fd, -1
        if descriptor >= 0:
            close_descriptor(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class ReadFile:
    """A regular file opened for reading. Thread-safe.

    Attributes:
        status: ``fstat`` of the file when it was opened.
    """

    def __init__(self, path: Path, open_path: Callable[[Path], int]) -> None:
        self._path = path
        self._opened: Descriptor | None = Descriptor(open_path(path))
        self.status: os.stat_result = call("fstat", path, self._opened.fd)

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """Yield the descriptor, which stays open within the block."""
        opened = self._opened
        if opened is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))
        yield opened.fd

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill a buffer from an offset. Returns the number of bytes read: fewer only at the end of the file."""
        rest = buffer.cast("B")
        while rest:
            with self.descriptor() as descriptor, storage_operation("read", self._path):
                count = os.preadv(descriptor, [rest], offset)
            if count == 0:
                break
            rest, offset = rest[count:], offset + count
        return buffer.nbytes - rest.nbytes

    def close(self) -> None:
        """Close the file once no other thread reads it. Idempotent."""
        self._opened = None


def with_room(do: Callable[[], T]) -> T:
    """Call ``do``; if the process has reached its limit of open files, raise the limit and call it again."""
    try:
        return do()
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    _raise_limit()  # no effect if another thread has done it
    return do()


def _raise_limit() -> None:
    """Raise the soft limit of open files to the hard one, if possible.

    The soft limit is low for programs that use ``select(2)``; the hard one is what the administrator allows. The user's
    limit is not changed before it is reached, because only then would it cost a checkpoint.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
