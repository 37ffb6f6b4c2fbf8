"""Files that are being read: any number of them, of which only so many have a descriptor at a time, and foreign files.

A restore on few ranks reads a checkpoint of many, and a job of 4,096 ranks has 4,096 parts and their bases. Linux lets
a process have 1,024 files open unless its limit (``ulimit -n``) is raised. So a file that has not been read for a while
gives its descriptor up, and is opened again when it is read the next time. It must be the same file then.

*Foreign* files are those that others have made: anyone's, and read as bytes that nobody trusts. A model that somebody
has published may be everyone's to read, and lie where others may write: its bytes are checked as far as its format lets
them be, and never executed. Links are followed: the folders that Hugging Face's library makes consist of links. What
remains is that opening must not wait, and do nothing to what is no file.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deeppart.access.folders import open_file
from deeppart.access.hanging import call, storage_operation
from deeppart.access.path_walk import close_descriptor
from deeppart.access.refusals import NotRegularError, give_way, with_room

#: Files with a descriptor at a time; fewer where the limit of this process is low.
_MOST_OPEN = 256
_LEAST_OPEN = 8


class ReadFile:
    """A regular file to be read; threads may share it.

    Attributes:
        status: of the file when it was opened first.
    """

    def __init__(self, path: str, *, foreign: bool = False) -> None:
        self._path, self._open_path = path, open_foreign if foreign else open_file
        self._opening = threading.Lock()  # held while it is opened again; taken before the lock of all
        self._users = 0
        self._closed = False
        self._fd = self._open_path(path)
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

    def _open_again(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        descriptor = self._open_path(self._path)
        try:
            if not os.path.samestat(call("fstat", self._path, descriptor), self.status):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), self._path)
        except BaseException:
            close_descriptor(descriptor)
            raise
        self._fd = descriptor
        _recent.has_opened(self, users=1)

    def close(self) -> None:
        """Close it; a second call does nothing."""
        _recent.close(self)


def most_open() -> int:
    """How many files that are being read may have a descriptor now: a quarter of what this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_OPEN if soft == resource.RLIM_INFINITY else max(_LEAST_OPEN, min(_MOST_OPEN, soft // 4))


class _Recent:
    """The files of this process that have a descriptor, least recently read first."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards the order, and descriptor, users and closed of every file
        self._order: dict[ReadFile, None] = {}

    def after_fork(self) -> None:
        """In the child: another thread of the parent may have held the lock."""
        self.lock = threading.Lock()

    def has_opened(self, file: ReadFile, users: int = 0) -> None:
        """Count a file in, and others out where there are too many."""
        with self.lock:
            file._users += users
            self._order[file] = None
            surplus = len(self._order) - most_open()
            given_up = [self._give_up(idle) for idle in self._idle(surplus, but=file)]
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
        descriptor = -1
        with self.lock:
            file._users -= 1
            if file._closed and not file._users and file in self._order:
                descriptor = self._give_up(file)
        if descriptor >= 0:
            close_descriptor(descriptor)

    def close(self, file: ReadFile) -> None:
        """Close a file, at the latest when nobody reads it any more."""
        descriptor = -1
        with self.lock:
            file._closed = True
            if not file._users and file in self._order:
                descriptor = self._give_up(file)
        if descriptor >= 0:
            close_descriptor(descriptor)

    def close_idle(self) -> bool:
        """Give up the descriptors of all that nobody reads now; True if there were any."""
        with self.lock:
            given_up = [self._give_up(file) for file in self._idle(len(self._order))]
        for descriptor in given_up:
            close_descriptor(descriptor)
        return bool(given_up)

    def _idle(self, most: int, but: ReadFile | None = None) -> list[ReadFile]:
        idle = (file for file in self._order if not file._users and file is not but)
        return [file for file, _ in zip(idle, range(max(0, most)), strict=False)]

    def _give_up(self, file: ReadFile) -> int:
        del self._order[file]
        descriptor, file._fd = file._fd, -1
        return descriptor


_recent = _Recent()

os.register_at_fork(after_in_child=_recent.after_fork)

give_way(_recent.close_idle)


def open_foreign(path: Path | str) -> int:
    """Open a regular file for reading, whoever it belongs to, by way of links too."""
    return with_room(lambda: _open(path))


def _open(path: Path | str) -> int:
    with storage_operation("open", path):
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(found).st_mode):
                raise NotRegularError(Path(path))
            return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            close_descriptor(found)


def is_foreign_directory(path: Path | str) -> bool:
    """True if a path leads to a directory, by way of links too."""
    with storage_operation("stat", path):
        return stat.S_ISDIR(os.stat(path).st_mode)


def names_in_foreign(path: Path | str) -> list[str]:
    """The names of the entries of a directory, whoever it belongs to."""
    with storage_operation("listdir", path):
        return os.listdir(path)
