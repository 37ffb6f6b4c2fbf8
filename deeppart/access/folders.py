"""Open directories, and what is done in them: see :mod:`deeppart.access` for what that protects from.

Only regular files are opened, without waiting for whoever else has them open (FIFOs, devices). A file is made under a
name that nobody has used (``O_EXCL``), never opened for writing because it is there.

The directories of a job or a command are *guarded*: rules hold below them, and they are held open. A directory stays
open as long as its path leads to it; where the path comes to lead elsewhere (a file system was mounted, somebody has
exchanged it), all of the way is checked again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from deeppart.access.hanging import storage_operation
from deeppart.access.path_walk import (
    ENTRIES,
    FILE,
    STEP,
    close_descriptor,
    components,
    descend,
    set_mode,
    status_of,
    sync_entries,
    walk,
    who,
)
from deeppart.access.refusals import ForeignAccessError, NotRegularError, refuse, with_room
from deeppart.access.rules import READING, Rules, planted

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


def _in_parent(path: Path, use: Callable[[Folder, str], Any], otherwise: Rules = READING) -> Any:
    return with_room(lambda: _once_in_parent(path, use, otherwise))


def _once_in_parent(path: Path, use: Callable[[Folder, str], Any], otherwise: Rules) -> Any:
    try:
        with open_folder(path.parent, otherwise) as folder:
            return use(folder, path.name)
    except (ForeignAccessError, NotRegularError):
        raise
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error


def open_file(path: Path | str, flags: int = os.O_RDONLY, *, over: bool = True) -> int:
    """:meth:`Folder.open`."""
    return int(_in_parent(Path(path), lambda folder, name: folder.open(name, flags, over=over)))


def create(path: Path, flags: int = os.O_RDWR) -> int:
    """:meth:`Folder.create`."""
    return int(_in_parent(path, lambda folder, name: folder.create(name, flags), Rules()))


def open_found(path: Path) -> int:
    """A file that is read because it lies in the working directory, not because somebody has named it."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        refuse(str(path.absolute().parent), planted(status_of(directory, who()), who()))
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path.name, flags, dir_fd=directory)
    finally:
        close_descriptor(directory)
    try:
        refuse(str(path.absolute()), planted(status_of(descriptor, who()), who()))
    except BaseException:
        close_descriptor(descriptor)
        raise
    return descriptor


def lstat(path: Path | str) -> os.stat_result:
    """``lstat``."""
    found: os.stat_result = _in_parent(Path(path), lambda folder, name: folder.lstat(name))
    return found


def exists(path: Path | str) -> bool:
    """True if anything has that name, even a link to nothing."""
    try:
        lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_directory(path: Path) -> bool:
    """True if it exists and is a directory, not a link to one."""
    try:
        return stat.S_ISDIR(lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def names_in(path: Path) -> list[str]:
    """The names of the entries of a directory."""
    with open_folder(path) as folder:
        return folder.names()


def directories_in(path: Path) -> list[str]:
    """The directories in a directory; no links to any. Errors as of :func:`names_in`."""
    with open_folder(path) as folder:
        return folder.directories()


def make_folder(path: Path) -> None:
    """Make a directory in one that is there, if it is not there yet, and make its entry durable."""
    try:
        open_folder(path).close()
    except FileNotFoundError:
        with open_folder(path.parent, Rules()) as folder:
            with contextlib.suppress(FileExistsError):  # another rank was faster
                folder.make(path.name)
            folder.sync()


def remove(path: Path) -> None:
    """``unlink``."""
    _in_parent(path, lambda folder, name: folder.remove(name))


def rename(path: Path, new: Path) -> None:
    """``rename``."""
    _in_parent(path, lambda here, name: _in_parent(new, lambda there, other: here.rename(name, there, other)))


def link(path: Path, new: Path) -> None:
    """``link``: a second name, which must be free."""
    _in_parent(path, lambda here, name: _in_parent(new, lambda there, other: here.link(name, there, other)))


def sync_directory(path: Path) -> None:
    """:meth:`Folder.sync`."""
    with open_folder(path) as folder:
        folder.sync()


def guard(directory: Path, rules: Rules) -> None:
    """From now on these rules hold in a directory and below it, for the whole process; end it with :func:`release`.

    Those of a directory further down come first. Of several for one directory, a job's come before a command's.
    """
    global _guarded
    with _lock:
        key = str(directory.absolute())
        found = (*_guarded.get(key, ()), rules)
        _guarded = {**_guarded, key: tuple(sorted(found, key=lambda each: each.reading))}


def release(directory: Path, rules: Rules) -> None:
    """Undo one :func:`guard`."""
    global _guarded
    with _lock:
        key = str(directory.absolute())
        left = list(_guarded.get(key, ()))
        if rules in left:
            left.remove(rules)
        _guarded = {name: found for name, found in {**_guarded, key: tuple(left)}.items() if found}
        if rules not in left:
            _held.pop((key, rules), None)


@contextmanager
def guarded(directory: Path, rules: Rules) -> Iterator[None]:
    """:func:`guard` for the length of a block."""
    guard(directory, rules)
    try:
        yield
    finally:
        release(directory, rules)


class Guards:
    """Directories that a job guards, until it ends."""

    def __init__(self) -> None:
        self._guarded: list[tuple[Path, Rules]] = []

    def add(self, directory: Path, rules: Rules) -> None:
        """:func:`guard`."""
        guard(directory, rules)
        self._guarded.append((directory, rules))

    def release(self) -> None:
        """:func:`release` all of them; a second call does nothing."""
        while self._guarded:
            release(*self._guarded.pop())


def rules_for(path: str) -> tuple[str, Rules] | None:
    """The nearest guarded directory at or above a path, and its rules."""
    known = _guarded
    while known:
        if path in known:
            return path, known[path][0]
        above = os.path.dirname(path)
        if above == path:
            break
        path = above
    return None


def held(root: str, rules: Rules) -> Held:
    """A guarded directory, open; the way to it is walked where that was not done yet, or leads elsewhere now."""
    known = _held.get((root, rules))
    if known is not None:
        status = os.stat(root)
        if known.identity == (status.st_dev, status.st_ino):
            return known
    found = _held[root, rules] = Held(walk(root, rules))
    return found


def forget(root: str, rules: Rules) -> None:
    """Walk all of the way the next time: what is held may be stale."""
    _held.pop((root, rules), None)


class Held:
    """A descriptor of a directory that was checked; whoever lets go of it last closes it."""

    def __init__(self, descriptor: int) -> None:
        self.fd = descriptor
        status = os.fstat(descriptor)
        self.identity = status.st_dev, status.st_ino

    def __del__(self) -> None:
        close_descriptor(self.fd)


_lock = threading.Lock()


#: Directory -> the rules that hold below it. Replaced as a whole, under the lock; read without it.
_guarded: dict[str, tuple[Rules, ...]] = {}


#: Those that were found sound by these rules, open. Single operations only, which the interpreter does not interrupt.
_held: dict[tuple[str, Rules], Held] = {}
