"""Descriptors of files: closed when nobody uses them any more; where there are no more, the limit is raised.

Linux lets a process have 1,024 files open unless its limit (``ulimit -n``) is raised, and a job of 4,096 ranks has
4,096 parts and their bases.
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
    """Nothing was written through it that is not synced: what closing it says, says nothing."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


class Descriptor:
    """A descriptor, closed when it is used no longer. A context manager."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        """At once, where no other thread can have it."""
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
    """A regular file to be read; threads may share it.

    Attributes:
        status: of the file when it was opened.
    """

    def __init__(self, path: Path, open_path: Callable[[Path], int]) -> None:
        self._path = path
        self._opened: Descriptor | None = Descriptor(open_path(path))
        self.status: os.stat_result = call("fstat", path, self._opened.fd)

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """The descriptor, which stays open inside."""
        opened = self._opened
        if opened is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))
        yield opened.fd

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill a buffer from an offset; how many bytes there were, fewer only at the end of the file."""
        rest = buffer.cast("B")
        while rest:
            with self.descriptor() as descriptor, storage_operation("read", self._path):
                count = os.preadv(descriptor, [rest], offset)
            if count == 0:
                break
            rest, offset = rest[count:], offset + count
        return buffer.nbytes - rest.nbytes

    def close(self) -> None:
        """Close it, at the latest when no other thread reads it any more; a second call does nothing."""
        self._opened = None


def with_room(do: Callable[[], T]) -> T:
    """What this returns; if this process has no more descriptors, its limit is raised, and it is tried again."""
    try:
        return do()
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    _raise_limit()  # or another thread has, meanwhile
    return do()


def _raise_limit() -> None:
    """Raise the soft limit of open files to the hard one, if that is possible.

    The soft limit is low for the sake of programs that use ``select(2)``; the hard one is what the administrator
    allows. To fail here would cost the job a checkpoint; not to touch it before leaves it as the user has set it.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
