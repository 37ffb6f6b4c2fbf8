"""Descriptors are scarce: files that are read share few of them, and where there are no more, room is made.

Linux lets a process have 1,024 files open unless its limit (``ulimit -n``) is raised, and a job of 4,096 ranks has
4,096 parts and their bases. So a file that has not been read for a while gives its descriptor up, and is opened again
when it is read the next time. It must be the same file then.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from deeppart.access.hanging import call, storage_operation

T = TypeVar("T")
#: This process, or this machine, has no more descriptors: nothing is wrong with the file that could not be opened.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})
#: Files with a descriptor at a time; fewer where the limit of this process is low.
_MOST_OPEN, _LEAST_OPEN = 256, 8


def close_descriptor(descriptor: int) -> None:
    """Nothing was written through it that is not synced: what closing it says, says nothing."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


class ReadFile:
    """A regular file to be read; threads may share it.

    Attributes:
        status: of the file when it was opened first.
    """

    def __init__(self, path: Path, open_path: Callable[[Path], int]) -> None:
        self._path, self._open_path = path, open_path
        self._opening = threading.Lock()  # held while it is opened again; taken before the lock of all
        self._users = 0
        self._closed = False
        self._fd = open_path(path)
        try:
            self.status: os.stat_result = call("fstat", path, self._fd)
        except BaseException:
            close_descriptor(self._fd)
            raise
        _recent.has_opened(self)

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """The descriptor, which stays open inside."""
        with self._opening:
            if not _recent.begin(self):
                self._open_again()
        try:
            yield self._fd
        finally:
            _recent.end(self)

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

    def _open_again(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))
        descriptor = self._open_path(self._path)
        try:
            if not os.path.samestat(call("fstat", self._path, descriptor), self.status):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self._path))
        except BaseException:
            close_descriptor(descriptor)
            raise
        self._fd = descriptor
        _recent.has_opened(self, users=1)

    def close(self) -> None:
        """Close it; a second call does nothing."""
        _recent.close(self)


class _Recent:
    """The files of this process that have a descriptor, least recently read first: the limit is one of the process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards the order, and descriptor, users and closed of every file
        self._order: dict[ReadFile, None] = {}

    def has_opened(self, file: ReadFile, users: int = 0) -> None:
        """Count a file in, and others out where there are too many."""
        with self.lock:
            file._users += users
            self._order[file] = None
            given_up = self._give_up_idle(len(self._order) - most_open(), but=file)
        for descriptor in given_up:
            close_descriptor(descriptor)

    def begin(self, file: ReadFile) -> bool:
        """Begin to use the descriptor of a file; False if it has none."""
        with self.lock:
            if file not in self._order:
                return False
            del self._order[file]
            self._order[file] = None
            file._users += 1
            return True

    def end(self, file: ReadFile) -> None:
        """End it; the last of a closed file closes it."""
        with self.lock:
            file._users -= 1
            descriptor = self._give_up(file) if file._closed and self._is_idle(file) else -1
        if descriptor >= 0:
            close_descriptor(descriptor)

    def close(self, file: ReadFile) -> None:
        """Close a file, at the latest when nobody reads it any more."""
        with self.lock:
            file._closed = True
            descriptor = self._give_up(file) if self._is_idle(file) else -1
        if descriptor >= 0:
            close_descriptor(descriptor)

    def close_idle(self) -> bool:
        """Give up the descriptors of all that nobody reads now; True if there were any."""
        with self.lock:
            given_up = self._give_up_idle(len(self._order))
        for descriptor in given_up:
            close_descriptor(descriptor)
        return bool(given_up)

    def _is_idle(self, file: ReadFile) -> bool:
        return not file._users and file in self._order

    def _give_up_idle(self, most: int, but: ReadFile | None = None) -> list[int]:
        idle = [file for file in self._order if not file._users and file is not but]
        return [self._give_up(file) for file in idle[: max(0, most)]]

    def _give_up(self, file: ReadFile) -> int:
        del self._order[file]
        descriptor, file._fd = file._fd, -1
        return descriptor


_recent = _Recent()


def _after_fork() -> None:
    """In the child: another thread of the parent may have held the lock."""
    _recent.lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def most_open() -> int:
    """How many files that are being read may have a descriptor now: a quarter of what this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_OPEN if soft == resource.RLIM_INFINITY else max(_LEAST_OPEN, min(_MOST_OPEN, soft // 4))


def with_room(do: Callable[[], T]) -> T:
    """What this returns; if there are no more descriptors, room is made, and it is tried again."""
    while True:
        try:
            return do()
        except OSError as error:
            if error.errno not in _EXHAUSTED or not (_recent.close_idle() or _raise_limit()):
                raise


def _raise_limit() -> bool:
    """Raise the soft limit of open files to the hard one; True if it is higher now.

    The soft limit is low for the sake of programs that use ``select(2)``; the hard one is what the administrator
    allows. To fail here would cost the job a checkpoint; not to touch it before leaves it as the user has set it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (resource.RLIM_INFINITY, hard):
        return False
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return False
    return True
