"""An open directory, and what is done in it: see :mod:`deeppart.access` for what that protects from.

Invariants
----------
* Only regular files are opened, without waiting for whoever else has them open (FIFOs, devices).
* A file is made under a name that nobody has used (``O_EXCL``), never opened for writing because it is there.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import TracebackType

from deeppart.access.acl import status_of
from deeppart.access.descriptors import ENTRIES, FILE, STEP, close_descriptor, set_mode, sync_entries, who
from deeppart.access.guards import Held, forget, held, rules_for
from deeppart.access.hanging import storage_operation
from deeppart.access.path_walk import components, descend, walk
from deeppart.access.refusals import NotRegularError, refuse
from deeppart.access.room import with_room
from deeppart.access.rules import READING, Rules

#: What ``open`` says of a link; of a FIFO that nobody reads, a socket or a device without driver; of a directory.
_NOT_REGULAR = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})


class Folder:
    """An open directory; what is done in it is done in this one, whatever its name leads to meanwhile.

    A context manager. Names are those of its entries. Made by :func:`open_folder`.

    Attributes:
        path: the way it was reached.
        rules: the rules that hold in it.
    """

    __slots__ = ("_fd", "_held", "path", "rules")

    def __init__(self, path: Path, rules: Rules, descriptor: int | Held) -> None:
        self.path, self.rules = path, rules
        self._held = descriptor if isinstance(descriptor, Held) else None
        self._fd = descriptor.fd if isinstance(descriptor, Held) else descriptor

    @property
    def fd(self) -> int:
        """Descriptor to go on from (``O_PATH``)."""
        return self._fd

    def open(self, name: str, flags: int = os.O_RDONLY, *, over: bool = True) -> int:
        """Open a regular file that is there."""
        try:
            with storage_operation("open", self.path / name):
                descriptor = os.open(name, flags & ~(os.O_CREAT | os.O_TRUNC) | FILE, dir_fd=self._fd)
        except OSError as error:
            if error.errno in _NOT_REGULAR:
                raise NotRegularError(self.path / name) from error
            raise
        try:
            status = status_of(descriptor, who())
            if not stat.S_ISREG(status.st_mode):
                raise NotRegularError(self.path / name)
            writes = over and flags & os.O_ACCMODE != os.O_RDONLY
            check = self.rules.over if writes else self.rules.inside
            refuse(str(self.path / name), check(status, who()))
        except BaseException:
            close_descriptor(descriptor)
            raise
        return descriptor

    def create(self, name: str, flags: int = os.O_RDWR) -> int:
        """Make a file, empty, under a name that is free."""
        mode = self.rules.file_mode & self._most()
        with storage_operation("open", self.path / name):
            descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL | FILE, mode, dir_fd=self._fd)
        try:
            set_mode(descriptor, self.rules)
        except BaseException:
            close_descriptor(descriptor)
            raise
        return descriptor

    def _most(self) -> int:
        """The most permissions of a new file: in a command, those of the directory; in a job, its rules decide."""
        return stat.S_IMODE(os.fstat(self._fd).st_mode) if self.rules.reading else 0o777

    def lstat(self, name: str) -> os.stat_result:
        """``lstat``."""
        with storage_operation("stat", self.path / name):
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False)

    def has(self, name: str) -> bool:
        """True if anything has that name."""
        try:
            self.lstat(name)
        except FileNotFoundError:
            return False
        return True

    def names(self) -> list[str]:
        """The names of the entries."""
        with storage_operation("listdir", self.path):
            readable = os.open(".", ENTRIES, dir_fd=self._fd)
            try:
                return os.listdir(readable)
            finally:
                close_descriptor(readable)

    def directories(self) -> list[str]:
        """The directories in it; no links to any."""
        with storage_operation("scandir", self.path):
            readable = os.open(".", ENTRIES, dir_fd=self._fd)
            try:
                with os.scandir(readable) as entries:
                    return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            finally:
                close_descriptor(readable)

    def make(self, name: str) -> None:
        """``mkdir``. Raises FileExistsError if there is one; it is asked whose it is when it is opened."""
        with storage_operation("mkdir", self.path / name):
            os.mkdir(name, self.rules.directory_mode & self._most(), dir_fd=self._fd)
            with self.enter(name) as made:
                set_mode(made.fd, self.rules)

    def enter(self, name: str) -> Folder:
        """A directory in this one."""
        path = self.path / name
        with storage_operation("open", path):
            descriptor = os.open(name, STEP, dir_fd=self._fd)
            try:
                refuse(str(path), self.rules.inside(status_of(descriptor, who()), who()))
            except BaseException:
                close_descriptor(descriptor)
                raise
        return Folder(path, self.rules, descriptor)

    def remove(self, name: str) -> None:
        """``unlink``."""
        with storage_operation("unlink", self.path / name):
            os.unlink(name, dir_fd=self._fd)

    def remove_directory(self, name: str) -> None:
        """``rmdir``."""
        with storage_operation("rmdir", self.path / name):
            os.rmdir(name, dir_fd=self._fd)

    def rename(self, name: str, to: Folder, new: str) -> None:
        """``rename``, in place of what has that name."""
        with storage_operation("rename", to.path / new):
            os.rename(name, new, src_dir_fd=self._fd, dst_dir_fd=to._fd)

    def link(self, name: str, to: Folder, new: str) -> None:
        """Give a file a second name, which must be free."""
        with storage_operation("link", to.path / new):
            os.link(name, new, src_dir_fd=self._fd, dst_dir_fd=to._fd, follow_symlinks=False)

    def sync(self) -> None:
        """Make new names and removals durable. Some network file systems cannot and need not: no error."""
        with storage_operation("fsync", self.path):
            sync_entries(self._fd)

    def close(self) -> None:
        """A second call does nothing."""
        descriptor, self._fd = self._fd, -1
        held, self._held = self._held, None
        if descriptor >= 0 and held is None:
            close_descriptor(descriptor)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_folder(path: Path, otherwise: Rules = READING) -> Folder:
    """Open a directory by the rules that hold there."""
    with storage_operation("open", path):
        return with_room(lambda: _open_folder(path, otherwise))


def _open_folder(path: Path, otherwise: Rules) -> Folder:
    absolute = str(path.absolute())
    found = rules_for(absolute)
    if found is None:
        return Folder(path, otherwise, walk(absolute, otherwise))
    root, rules = found
    opened = held(root, rules)
    below = components(absolute[len(root) :])
    if not below:
        return Folder(path, rules, opened)
    try:
        return Folder(path, rules, descend(opened.fd, root, below, rules))
    except OSError:
        forget(root, rules)
        raise
