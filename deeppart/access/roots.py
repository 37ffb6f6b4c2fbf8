"""Directories named by the user, opened once, and everything below them through their descriptors.

A session, level or command opens a :class:`Root`. Each component of its path is opened relative to the previous one
(``openat(2)`` with ``O_NOFOLLOW``) and checked through its descriptor, so a concurrent rename cannot replace what was
checked. Below a root no link is followed, only regular files are opened (without blocking, for example on a FIFO), and
files are only created under free names.

``root.path`` is a path bound to its root, and so are all paths derived from it (``path / name``, ``path.parent``); the
functions of this module open them through the root. Any other path was named by the user: files there may be read
whoever owns them, but are only created in directories to which others cannot write.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PosixPath
from types import TracebackType
from typing import TypeVar

from deeppart.access.descriptors import Descriptor, close_descriptor, with_room
from deeppart.access.hanging import storage_operation
from deeppart.access.refusals import NotRegularError
from deeppart.access.rules import READING, ForeignAccessError, Rules, Status

T = TypeVar("T")
#: The kernel's limit of symbolic links in a path.
_MOST_LINKS = 40
#: Number of directories below a root that are kept open.
_MOST_HELD = 4
#: Flags for a directory on the way: needs no permission to read it.
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Flags for a regular file, opened without blocking.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ENTRIES = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: Errors of ``fsync`` on a directory where it is neither possible nor necessary.
_NO_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
#: Errors of ``open`` for a link; for a FIFO without reader, a socket or a device without driver; for a directory.
_NOT_REGULAR = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})
#: Mode bits for permissions = "group": the group has the owner's permissions, and new entries inherit the group.
_GROUP_DIRECTORY, _GROUP_FILE = stat.S_ISGID | 0o070, 0o060


class Root:
    """A directory named by the user, and the rules that apply in it.

    It is opened at first use. It and a few directories below it stay open as long as their paths still lead to them.
    When a path leads to another directory (after a mount or a rename), it is opened and checked again.
    """

    def __init__(self, directory: Path, rules: Rules = READING) -> None:
        self.rules = rules
        self._parts, self._absolute = directory.parts, str(directory.absolute())
        self.path = _bound(RootedPath(directory), self)
        self._opened: dict[tuple[str, ...], _Directory] = {}  # never modified, only replaced: threads share it

    def at(self, path: str | Path) -> Path:
        """Bind a path to this root; ValueError if it is not below it."""
        found = _bound(RootedPath(path), self)
        if self.names(found) is None:
            raise ValueError(f"{path} is not below {self.path}")
        return found

    def make(self, *below: str) -> Path:
        """Create the directory with its parents and subdirectories ``below``, durably. Returns the innermost one.

        Existing directories are checked, and made private if the rules require it.
        """
        path: Path = self.path
        with storage_operation("mkdir", path):
            self._opened = {(): with_room(lambda: _walk(self._absolute, self.rules, make=True))}
            for name in below:
                path = path / name
                make_folder(path)
                if self.rules.is_private:
                    with open_folder(path) as folder:
                        folder.close_to_others()
        return path

    def names(self, path: Path) -> tuple[str, ...] | None:
        """The components of a path relative to this directory; None if it is not below it."""
        names = path.parts[len(self._parts) :]
        return names if path.parts[: len(self._parts)] == self._parts and ".." not in names else None

    def open_folder(self, names: tuple[str, ...]) -> Folder:
        """Open the directory, or one below it."""
        path = self.path.joinpath(*names) if names else self.path
        return Folder(_bound(path, self), self.rules, self._open(names))

    def _open(self, names: tuple[str, ...]) -> _Directory:
        path = os.path.join(self._absolute, *names)
        known = self._opened.get(names)
        if known is not None:
            with _named(path):
                if known.is_still(path, self.rules, above=self.rules.node and not names):
                    return known
        if names:
            around = self._open(names[:-1])  # in a variable, which keeps the descriptor open
            found = _enter(around.fd, path, self.rules)
        else:
            found = _walk(self._absolute, self.rules)
        held = {each: opened for each, opened in self._opened.items() if each != names} if names else {}
        if len(held) > _MOST_HELD:
            del held[next(each for each in held if each)]
        self._opened = {**held, names: found}
        return found

    def close(self) -> None:
        """Close the directory, once operations in progress have finished."""
        self._opened = {}


class RootedPath(PosixPath):
    """A path bound to the root above it; derived paths are bound to the same root.

    Use only the functions of this package for file operations on it, not those of :class:`Path`.
    """

    within: Root | None = None

    def __truediv__(self, name: str | os.PathLike[str]) -> RootedPath:
        return _bound(super().__truediv__(name), self.within)

    @property
    def parent(self) -> RootedPath:
        """See :attr:`pathlib.PurePath.parent`."""
        return _bound(super().parent, self.within)

    def with_name(self, name: str) -> RootedPath:
        """See :meth:`pathlib.PurePath.with_name`."""
        return _bound(super().with_name(name), self.within)


def _bound(path: RootedPath, within: Root | None) -> RootedPath:
    path.within = within
    return path


def root_of(path: Path) -> Root | None:
    """The root to which a path is bound, or None."""
    return path.within if isinstance(path, RootedPath) else None


def below_root(directory: Path) -> Path:
    """A bound path: this one if it is bound, otherwise that of a new root for reading."""
    return directory if root_of(directory) is not None else Root(directory).path


class Roots:
    """The directories of a session, to which paths received from other ranks are bound."""

    def __init__(self, *roots: Root) -> None:
        self._roots = roots

    @classmethod
    def to_read(cls, *directories: Path) -> Roots:
        """The directories of a command that only reads, whoever owns them."""
        return cls(*(root_of(each) or Root(each) for each in directories))

    def at(self, path: str | Path) -> Path:
        """Bind a path to the root above it. For any other path (ranks may use different names for a directory), make a
        new root with the rules of the first one.
        """
        for root in self._roots:
            with contextlib.suppress(ValueError):
                return root.at(path)
        found = Path(path)
        return Root(found.parent, self._roots[0].rules if self._roots else Rules()).path / found.name

    def close(self) -> None:
        """Close all roots."""
        for root in self._roots:
            root.close()


class _Directory(Descriptor):
    """An open directory that was checked against the rules."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._identity = (0, 0)

    def check(self, path: str, rules: Rules, *, above: bool = False) -> None:
        """Raise ForeignAccessError if other users own the directory or can write to it."""
        found = os.fstat(self.fd)
        self._identity = found.st_dev, found.st_ino
        rules.check(path, Status.of(self.fd, found), above=above)

    def is_still(self, path: str, rules: Rules, *, above: bool) -> bool:
        """True if the path still leads to this directory, which is then checked again."""
        found = os.stat(path)
        if self._identity != (found.st_dev, found.st_ino):
            return False
        rules.check(path, Status.of(self.fd, found), above=above)
        return True


def _walk(path: str, rules: Rules, *, make: bool = False) -> _Directory:
    """Open a directory by its absolute path, through directories and links that other users cannot replace."""
    here, at, links = _Directory(os.open("/", _STEP)), "/", 0
    ahead = _components(path)
    try:
        while ahead:
            here.check(at, rules, above=True)
            name = ahead.pop()
            where = os.path.join(at, name)
            with _named(where):
                try:
                    found, at = _step(here.fd, name, rules if make else None), where
                except NotADirectoryError:
                    links += 1
                    target = _read_link(here.fd, name, where, rules, links)
                    ahead += _components(target)
                    if not target.startswith("/"):
                        continue
                    found, at = os.open("/", _STEP), "/"
            here.close()
            here = _Directory(found)
        here.check(at, rules, above=rules.node)
    except BaseException:
        here.close()
        raise
    return here


def _read_link(directory: int, name: str, path: str, rules: Rules, number: int) -> str:
    """The target of a symbolic link; NotADirectoryError if it is not a link."""
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if number > _MOST_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    rules.check_link(path, found)
    return os.readlink(name, dir_fd=directory)


def _enter(directory: int, path: str, rules: Rules) -> _Directory:
    """Open and check a directory within another one."""
    with _named(path):
        found = _Directory(os.open(os.path.basename(path), _STEP, dir_fd=directory))
        try:
            found.check(path, rules)
        except BaseException:
            found.close()
            raise
    return found


def _components(path: str) -> list[str]:
    """The components of a path in reverse order, so that ``pop()`` returns the next one."""
    return [name for name in reversed(path.split("/")) if name and name != "."]


@contextmanager
def _named(path: Path | str) -> Iterator[None]:
    """Put this path into errors of the operating system."""
    try:
        yield
    except (ForeignAccessError, NotRegularError):
        raise
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), str(path)) from error


def _step(directory: int, name: str, make: Rules | None) -> int:
    try:
        return os.open(name, _STEP, dir_fd=directory)
    except FileNotFoundError:
        if make is None:
            raise
    with contextlib.suppress(FileExistsError):  # another rank has made it
        os.mkdir(name, make.mode(directory=True), dir_fd=directory)
        _sync(directory)
        _set_mode(directory, name, make)
    return os.open(name, _STEP, dir_fd=directory)


def _set_mode(directory: int, name: str, rules: Rules) -> None:
    """Restore the group permissions that the umask has removed from a new entry, if the file system has modes."""
    if rules.permissions != "group":
        return
    with Descriptor(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)) as made:
        mode = os.fstat(made.fd).st_mode
        wanted = stat.S_IMODE(mode) | (_GROUP_DIRECTORY if stat.S_ISDIR(mode) else _GROUP_FILE)
        with contextlib.suppress(OSError):
            os.chmod(f"/proc/self/fd/{made.fd}", wanted)


def _sync(directory: int) -> None:
    with Descriptor(os.open(".", _ENTRIES, dir_fd=directory)) as readable:
        try:
            os.fsync(readable.fd)
        except OSError as error:
            if error.errno not in _NO_SYNC:
                raise


class Folder:
    """An open directory; operations apply to it even if its path is changed to lead elsewhere.

    A context manager, made by :func:`open_folder`. All names are names of its entries.
    """

    def __init__(self, path: Path, rules: Rules, opened: _Directory) -> None:
        self.path, self.rules = path, rules
        self._opened: _Directory | None = opened

    @property
    def fd(self) -> int:
        """Descriptor for ``dir_fd=`` (``O_PATH``)."""
        if self._opened is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))
        return self._opened.fd

    def open(self, name: str, flags: int = os.O_RDONLY, *, over: bool = True) -> int:
        """Open an existing regular file; with ``over``, the rules for overwriting apply if it is opened for writing."""
        path = self.path / name
        try:
            with storage_operation("open", path):
                descriptor = os.open(name, flags & ~(os.O_CREAT | os.O_TRUNC) | _FILE, dir_fd=self.fd)
        except OSError as error:
            if error.errno in _NOT_REGULAR:
                raise NotRegularError(path) from error
            raise
        try:
            status = Status.of(descriptor)
            if not stat.S_ISREG(status.mode):
                raise NotRegularError(path)
            writes = over and flags & os.O_ACCMODE != os.O_RDONLY
            (self.rules.check_over if writes else self.rules.check)(path, status)
        except BaseException:
            close_descriptor(descriptor)
            raise
        return descriptor

    def create(self, name: str, flags: int = os.O_RDWR) -> int:
        """Create an empty file under a free name."""
        mode = self.rules.mode(directory=False) & self._most()
        with storage_operation("open", self.path / name):
            descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL | _FILE, mode, dir_fd=self.fd)
        try:
            _set_mode(self.fd, name, self.rules)
        except BaseException:
            close_descriptor(descriptor)
            raise
        return descriptor

    def _most(self) -> int:
        """Limits the mode of new entries: in a command to that of the directory; in a job the rules decide alone."""
        return stat.S_IMODE(os.fstat(self.fd).st_mode) if self.rules.reading else 0o777

    def lstat(self, name: str) -> os.stat_result:
        """``lstat``."""
        with storage_operation("stat", self.path / name):
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def has(self, name: str) -> bool:
        """True if there is an entry of this name, of any kind."""
        try:
            self.lstat(name)
        except FileNotFoundError:
            return False
        return True

    def names(self) -> list[str]:
        """The names of the entries."""
        with storage_operation("listdir", self.path):
            with Descriptor(os.open(".", _ENTRIES, dir_fd=self.fd)) as readable:
                return os.listdir(readable.fd)

    def make(self, name: str) -> None:
        """``mkdir``. Raises FileExistsError; an existing directory is checked when it is opened."""
        with storage_operation("mkdir", self.path / name):
            os.mkdir(name, self.rules.mode(directory=True) & self._most(), dir_fd=self.fd)
            _set_mode(self.fd, name, self.rules)

    def enter(self, name: str) -> Folder:
        """Open a directory in this one."""
        path = self.path / name
        with storage_operation("open", path):
            return Folder(path, self.rules, _enter(self.fd, str(path), self.rules))

    def close_to_others(self) -> None:
        """Remove the permissions of all other users, if the file system has permissions."""
        mode = stat.S_IMODE(os.fstat(self.fd).st_mode)
        if mode & 0o077:
            with contextlib.suppress(OSError):
                os.chmod(f"/proc/self/fd/{self.fd}", mode & 0o700)

    def remove(self, name: str) -> None:
        """``unlink``."""
        with storage_operation("unlink", self.path / name):
            os.unlink(name, dir_fd=self.fd)

    def remove_directory(self, name: str) -> None:
        """``rmdir``."""
        with storage_operation("rmdir", self.path / name):
            os.rmdir(name, dir_fd=self.fd)

    def rename(self, name: str, to: Folder, new: str) -> None:
        """``rename``, which replaces an existing entry."""
        with storage_operation("rename", to.path / new):
            os.rename(name, new, src_dir_fd=self.fd, dst_dir_fd=to.fd)

    def link(self, name: str, to: Folder, new: str) -> None:
        """``link``: add a name, which must be free, to a file."""
        with storage_operation("link", to.path / new):
            os.link(name, new, src_dir_fd=self.fd, dst_dir_fd=to.fd, follow_symlinks=False)

    def sync(self) -> None:
        """Make new and removed entries durable. No error on file systems where this is not possible."""
        with storage_operation("fsync", self.path):
            _sync(self.fd)

    def close(self) -> None:
        """Close the directory once no other object uses it. Idempotent."""
        self._opened = None

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_folder(path: Path, otherwise: Rules = READING) -> Folder:
    """Open a directory: through its root if the path is bound, else by the rules ``otherwise``."""
    with storage_operation("open", path):
        return with_room(lambda: _open_folder(path, otherwise))


def _open_folder(path: Path, otherwise: Rules) -> Folder:
    within = path.within if isinstance(path, RootedPath) else None
    names = None if within is None else within.names(path)
    if within is not None and names is not None:
        return within.open_folder(names)
    return Folder(path, otherwise, _walk(str(path.absolute()), otherwise))


def _in_parent(path: Path, use: Callable[[Folder, str], T], otherwise: Rules = READING) -> T:
    def once() -> T:
        with _named(path), open_folder(path.parent, otherwise) as folder:
            return use(folder, path.name)

    return with_room(once)


def open_file(path: Path, flags: int = os.O_RDONLY, *, over: bool = True) -> int:
    """:meth:`Folder.open`."""
    return _in_parent(path, lambda folder, name: folder.open(name, flags, over=over))


def create(path: Path, flags: int = os.O_RDWR) -> int:
    """:meth:`Folder.create`."""
    return _in_parent(path, lambda folder, name: folder.create(name, flags), Rules())


def open_beside_user(path: Path) -> int:
    """Open a file that was found in the working directory rather than named by the user."""
    rules = Rules(node=True)
    with Folder(path.parent, rules, _Directory(os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))) as it:
        rules.check(path.absolute().parent, Status.of(it.fd))
        return it.open(path.name)


def open_foreign(path: Path) -> int:
    """Open a regular file of any owner for reading, following links: its bytes are not trusted.

    The directories made by Hugging Face's library consist of links. Opening does not block, and has no effect on
    devices and FIFOs.
    """
    with storage_operation("open", path):
        with Descriptor(with_room(lambda: os.open(path, os.O_PATH | os.O_CLOEXEC))) as found:
            if not stat.S_ISREG(os.fstat(found.fd).st_mode):
                raise NotRegularError(path)
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            return with_room(lambda: os.open(f"/proc/self/fd/{found.fd}", flags))


def lstat(path: Path) -> os.stat_result:
    """``lstat``."""
    return _in_parent(path, lambda folder, name: folder.lstat(name))


def exists(path: Path) -> bool:
    """True if there is an entry of this name, even a dangling link."""
    try:
        lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def names_in(path: Path) -> list[str]:
    """The names of the entries of a directory."""
    with open_folder(path) as folder:
        return folder.names()


def make_folder(path: Path) -> None:
    """Create a directory in an existing one, unless it exists, and make its entry durable."""
    try:
        open_folder(path).close()
    except FileNotFoundError:
        with open_folder(path.parent, Rules()) as folder:
            with contextlib.suppress(FileExistsError):  # another rank has made it
                folder.make(path.name)
            folder.sync()


def remove(path: Path) -> None:
    """``unlink``."""
    _in_parent(path, lambda folder, name: folder.remove(name))


def rename(path: Path, new: Path) -> None:
    """``rename``, which replaces an existing file."""
    _in_parent(path, lambda here, name: _in_parent(new, lambda there, other: here.rename(name, there, other)))


def link(path: Path, new: Path) -> None:
    """``link``: add a name, which must be free, to a file."""
    _in_parent(path, lambda here, name: _in_parent(new, lambda there, other: here.link(name, there, other)))


def sync_directory(path: Path) -> None:
    """:meth:`Folder.sync`."""
    with open_folder(path) as folder:
        folder.sync()
