"""Directories that a user has named, opened once, and everything below them by way of their descriptors.

A :class:`Root` is opened by whoever uses the directory: a session, a level, a command. Each component of its path is
entered from the one before (``openat(2)`` with ``O_NOFOLLOW``) and checked by its descriptor: what was checked is what
is used, whatever names are given to other things meanwhile. Below it no link is followed, only regular files are
opened, without waiting for whoever else has them open, and a file is made under a name that nothing has.

``root.path`` is a path that knows its root, and so are all that are built from it (``path / name``, ``path.parent``):
the functions of this module reach them by way of it. Another path is one that a user has named: what is read there may
be anyone's, what is made must be in a directory that others cannot write to.
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
#: As many symbolic links as the kernel follows.
_MOST_LINKS = 40
#: Directories below a root that stay open.
_MOST_HELD = 4
#: A directory to go on from: needs no permission to read it.
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: A regular file, opened without waiting for whoever else has it open.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ENTRIES = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: Refusals of ``fsync`` on a directory that mean "cannot and need not".
_NO_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
#: What ``open`` says of a link; of a FIFO that nobody reads, a socket or a device without driver; of a directory.
_NOT_REGULAR = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})
#: With "group", the group may do what the owner may; what is made in a directory belongs to the directory's group.
_GROUP_DIRECTORY, _GROUP_FILE = stat.S_ISGID | 0o070, 0o060


class Root:
    """A directory that a user has named, and the rules that hold in it.

    It is opened when it is first used, and stays open as long as its path leads to it; so do a few of those below.
    Where a path comes to lead elsewhere (a file system was mounted, somebody exchanged it), the way is checked anew.
    """

    def __init__(self, directory: Path, rules: Rules = READING) -> None:
        self.rules = rules
        self._parts, self._absolute = directory.parts, str(directory.absolute())
        self.path = _bound(RootedPath(directory), self)
        self._opened: dict[tuple[str, ...], _Directory] = {}  # replaced as a whole: threads may share it

    def at(self, path: str | Path) -> Path:
        """A path below this directory, given as a text; ValueError for any other."""
        found = _bound(RootedPath(path), self)
        if self.names(found) is None:
            raise ValueError(f"{path} is not below {self.path}")
        return found

    def make(self, *below: str) -> Path:
        """Make the directory, with its parents, and more in it; what is there is checked, and made private if it must.

        Entries are made durable. Returns the last one.
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
        """The components of a path below this directory; None for any other."""
        names = path.parts[len(self._parts) :]
        return names if path.parts[: len(self._parts)] == self._parts and ".." not in names else None

    def open_folder(self, names: tuple[str, ...]) -> Folder:
        """The directory itself, or one below it."""
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
            around = self._open(names[:-1])  # by name: it is closed when nobody has it any more
            found = _enter(around.fd, path, self.rules)
        else:
            found = _walk(self._absolute, self.rules)
        held = {each: opened for each, opened in self._opened.items() if each != names} if names else {}
        if len(held) > _MOST_HELD:
            del held[next(each for each in held if each)]
        self._opened = {**held, names: found}
        return found

    def close(self) -> None:
        """Let go of the directory; operations that are under way in it end."""
        self._opened = {}


class RootedPath(PosixPath):
    """A path that knows the root below which it lies; so do those that are built from it.

    Only what :class:`Path` offers for that is extended: on files, only functions of this package work.
    """

    within: Root | None = None

    def __truediv__(self, name: str | os.PathLike[str]) -> RootedPath:
        return _bound(super().__truediv__(name), self.within)

    @property
    def parent(self) -> RootedPath:
        """As of any path."""
        return _bound(super().parent, self.within)

    def with_name(self, name: str) -> RootedPath:
        """As of any path."""
        return _bound(super().with_name(name), self.within)


def _bound(path: RootedPath, within: Root | None) -> RootedPath:
    path.within = within
    return path


def root_of(path: Path) -> Root | None:
    """The root that a path knows; None where a user has named it."""
    return path.within if isinstance(path, RootedPath) else None


def below_root(directory: Path) -> Path:
    """A path that knows its root: this one, or that of a new root to read from."""
    return directory if root_of(directory) is not None else Root(directory).path


class Roots:
    """The directories of a session, for paths that ranks send to each other as texts."""

    def __init__(self, *roots: Root) -> None:
        self._roots = roots

    @classmethod
    def to_read(cls, *directories: Path) -> Roots:
        """Those of a command: of these directories, whoever they belong to."""
        return cls(*(root_of(each) or Root(each) for each in directories))

    def at(self, path: str | Path) -> Path:
        """A path below one of them. What another rank calls by another name is checked as the first one is."""
        for root in self._roots:
            with contextlib.suppress(ValueError):
                return root.at(path)
        found = Path(path)
        return Root(found.parent, self._roots[0].rules if self._roots else Rules()).path / found.name

    def close(self) -> None:
        """Let go of all of them."""
        for root in self._roots:
            root.close()


class _Directory(Descriptor):
    """A directory that was checked."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._identity = (0, 0)

    def check(self, path: str, rules: Rules, *, above: bool = False) -> None:
        """Refuse it if others own it or can write to it."""
        found = os.fstat(self.fd)
        self._identity = found.st_dev, found.st_ino
        rules.check(path, Status.of(self.fd, found), above=above)

    def is_still(self, path: str, rules: Rules, *, above: bool) -> bool:
        """True if a path leads to this directory; checked, as by :meth:`check`."""
        found = os.stat(path)
        if self._identity != (found.st_dev, found.st_ino):
            return False
        rules.check(path, Status.of(self.fd, found), above=above)
        return True


def _walk(path: str, rules: Rules, *, make: bool = False) -> _Directory:
    """A directory by its absolute path, from ``/`` through directories and links that others cannot exchange."""
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
    """The target of a symbolic link; what is neither a link nor a directory is refused."""
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if number > _MOST_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    rules.check_link(path, found)
    return os.readlink(name, dir_fd=directory)


def _enter(directory: int, path: str, rules: Rules) -> _Directory:
    """A directory in another one, by its path."""
    with _named(path):
        found = _Directory(os.open(os.path.basename(path), _STEP, dir_fd=directory))
        try:
            found.check(path, rules)
        except BaseException:
            found.close()
            raise
    return found


def _components(path: str) -> list[str]:
    """Names to go through, the first one last."""
    return [name for name in reversed(path.split("/")) if name and name != "."]


@contextmanager
def _named(path: Path | str) -> Iterator[None]:
    """Errors of the system name this path; ours do already."""
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
    with contextlib.suppress(FileExistsError):  # another rank was faster
        os.mkdir(name, make.mode(directory=True), dir_fd=directory)
        _sync(directory)
        _set_mode(directory, name, make)
    return os.open(name, _STEP, dir_fd=directory)


def _set_mode(directory: int, name: str, rules: Rules) -> None:
    """Give what was just made what the umask may have taken from its group, as far as the file system has modes."""
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
    """An open directory; what is done in it is done in this one, whatever its name leads to meanwhile.

    A context manager. Names are those of its entries. Made by :func:`open_folder`.
    """

    def __init__(self, path: Path, rules: Rules, opened: _Directory) -> None:
        self.path, self.rules = path, rules
        self._opened: _Directory | None = opened

    @property
    def fd(self) -> int:
        """Descriptor to go on from (``O_PATH``)."""
        if self._opened is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self.path))
        return self._opened.fd

    def open(self, name: str, flags: int = os.O_RDONLY, *, over: bool = True) -> int:
        """Open a regular file that is there."""
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
        """Make a file, empty, under a name that is free."""
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
        """The most permissions of a new file: in a command, those of the directory; in a job, its rules decide."""
        return stat.S_IMODE(os.fstat(self.fd).st_mode) if self.rules.reading else 0o777

    def lstat(self, name: str) -> os.stat_result:
        """``lstat``."""
        with storage_operation("stat", self.path / name):
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

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
            with Descriptor(os.open(".", _ENTRIES, dir_fd=self.fd)) as readable:
                return os.listdir(readable.fd)

    def make(self, name: str) -> None:
        """``mkdir``. Raises FileExistsError if there is one; it is asked whose it is when it is opened."""
        with storage_operation("mkdir", self.path / name):
            os.mkdir(name, self.rules.mode(directory=True) & self._most(), dir_fd=self.fd)
            _set_mode(self.fd, name, self.rules)

    def enter(self, name: str) -> Folder:
        """A directory in this one."""
        path = self.path / name
        with storage_operation("open", path):
            return Folder(path, self.rules, _enter(self.fd, str(path), self.rules))

    def close_to_others(self) -> None:
        """Take everyone else's permissions away, as far as the file system has any."""
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
        """``rename``, in place of what has that name."""
        with storage_operation("rename", to.path / new):
            os.rename(name, new, src_dir_fd=self.fd, dst_dir_fd=to.fd)

    def link(self, name: str, to: Folder, new: str) -> None:
        """Give a file a second name, which must be free."""
        with storage_operation("link", to.path / new):
            os.link(name, new, src_dir_fd=self.fd, dst_dir_fd=to.fd, follow_symlinks=False)

    def sync(self) -> None:
        """Make new names and removals durable. Some network file systems cannot and need not: no error."""
        with storage_operation("fsync", self.path):
            _sync(self.fd)

    def close(self) -> None:
        """At the latest when nobody else has it any more; a second call does nothing."""
        self._opened = None

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_folder(path: Path, otherwise: Rules = READING) -> Folder:
    """Open a directory: below its root, or by the rules for one that a user has named."""
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
    """A file that is read because it lies in the working directory, not because somebody has named it."""
    rules = Rules(node=True)
    with Folder(path.parent, rules, _Directory(os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))) as it:
        rules.check(path.absolute().parent, Status.of(it.fd))
        return it.open(path.name)


def open_foreign(path: Path) -> int:
    """Open a regular file for reading, whoever it belongs to, by way of links too: its bytes are not trusted.

    The folders that Hugging Face's library makes consist of links. Opening does not wait, and does nothing to what is
    no file.
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
    """True if anything has that name, even a link to nothing."""
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
    """``rename``, in place of what has that name."""
    _in_parent(path, lambda here, name: _in_parent(new, lambda there, other: here.rename(name, there, other)))


def link(path: Path, new: Path) -> None:
    """``link``: a second name, which must be free."""
    _in_parent(path, lambda here, name: _in_parent(new, lambda there, other: here.link(name, there, other)))


def sync_directory(path: Path) -> None:
    """:meth:`Folder.sync`."""
    with open_folder(path) as folder:
        folder.sync()
