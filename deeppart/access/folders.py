"""Reaching directories and files without going through anything that others could have put in the way.

The way to a directory begins at the root of the file system and goes from one open directory to the next
(``openat(2)`` with ``O_NOFOLLOW``); each is asked whose it is (:mod:`deeppart.access.rules`) by its descriptor, so what
was checked is what is used, whatever names are given to other things meanwhile. A directory stays open as long as its
path leads to it; where the path comes to lead elsewhere (a file system was mounted, somebody has exchanged it), all of
the way is checked again. Paths serve for messages.

Links *above* a directory that is used are followed where nobody else can have put them there. Below it none is.

Which rules hold below which directory is set by :func:`guard`, by whoever opens it: a running job, or a command that
reads. Elsewhere, what is read may be anyone's; what is made must be in a directory that others cannot write to.

Invariants
----------
* Only regular files are opened, without waiting for whoever else has them open (FIFOs, devices).
* A file is made under a name that nobody has used (``O_EXCL``), never opened for writing because it is there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

from deeppart.access.hanging import storage_operation
from deeppart.access.lists import status_of
from deeppart.access.rules import READING, Complaint, Identity, Rules, Status, planted

#: As many symbolic links as the kernel follows.
_MOST_LINKS = 40
#: A directory to go on from: needs no permission to read it.
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: What ``open`` says of a link; of a FIFO that nobody reads, a socket or a device without driver; of a directory.
_NOT_REGULAR = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR})
#: Refusals of ``fsync`` on a directory that mean "cannot and need not".
_NO_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


class ForeignAccessError(PermissionError):
    """Others own something, or can write to it, and so could decide what is read or written.

    Attributes:
        complaint: what is wrong, and what can be done.
    """

    def __init__(self, path: Path, complaint: Complaint) -> None:
        super().__init__(errno.EPERM, f"not used: {complaint.found}", str(path))
        self.complaint = complaint


def answers(error: OSError) -> dict[str, str]:
    """What an error message is to say beyond what the operating system says; {} where there is no more."""
    if isinstance(error, NotRegularError):
        todo = "find out who has put it there, and remove it"
        return {"expected": "a regular file", "found": str(error.strerror), "where": str(error.filename), "todo": todo}
    if not isinstance(error, ForeignAccessError):
        return {}
    complaint = error.complaint
    where = str(error.filename)
    return {"expected": complaint.expected, "found": complaint.found, "where": where, "todo": complaint.todo}


class NotRegularError(OSError):
    """A symbolic link, a directory, a device, a FIFO or a socket in the place of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__(errno.EINVAL, "not a regular file (a symbolic link, a directory or a device)", str(path))


# --- which rules hold where -------------------------------------------------------------------------------------------


def _close(descriptor: int) -> None:
    """Nothing was written through it that is not synced: what closing it says, says nothing."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


class _Held:
    """A descriptor of a directory that was checked; whoever lets go of it last closes it."""

    def __init__(self, descriptor: int) -> None:
        self.fd = descriptor
        status = os.fstat(descriptor)
        self.identity = status.st_dev, status.st_ino

    def __del__(self) -> None:
        _close(self.fd)


_lock = threading.Lock()
#: Directory -> the rules that hold below it. Replaced as a whole, under the lock; read without it.
_guarded: dict[str, tuple[Rules, ...]] = {}
#: Those that were found sound by these rules, open. Single operations only, which the interpreter does not interrupt.
_held: dict[tuple[str, Rules], _Held] = {}


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


def _rules_for(path: str) -> tuple[str, Rules] | None:
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


# --- the way to a directory -------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _identity(uid: int) -> Identity:
    return Identity.current()


def _who() -> Identity:
    return _identity(os.geteuid())


def _refuse(path: str, complaint: Complaint | None) -> None:
    if complaint is not None:
        raise ForeignAccessError(Path(path), complaint)


def _components(path: str) -> list[str]:
    """Names to go through, the first one last."""
    return [name for name in reversed(path.split("/")) if name and name != "."]


class _Way:
    """The directory that has been reached; exchanged for the next one on the way."""

    def __init__(self, rules: Rules) -> None:
        self._rules, self._who = rules, _who()
        self._links = 0
        self.path = "/"
        self.fd = os.open("/", _STEP)

    def close(self) -> None:
        descriptor, self.fd = self.fd, -1
        if descriptor >= 0:
            _close(descriptor)

    def follow(self, path: str, *, make: bool, last_is_ours: bool) -> None:
        """Go to an absolute path, through directories that others cannot exchange; links that are as good are followed.

        Args:
            make: directories that are missing.
            last_is_ours: nothing but a directory is accepted for the last component.
        """
        ahead = _components(path)
        while ahead:
            here = status_of(self.fd, self._who)
            _refuse(self.path, self._rules.above(here, self._who))
            name = ahead.pop()
            try:
                self._enter(name, make=make)
            except NotADirectoryError:
                if last_is_ours and not ahead:
                    raise
                target = self._read_link(name, here)
                ahead += _components(target)
                if target.startswith("/"):
                    self._go_to(os.open("/", _STEP), "/")
        _refuse(self.path, self._rules.root(status_of(self.fd, self._who), self._who))

    def _read_link(self, name: str, here: Status) -> str:
        """Where a symbolic link leads; what is neither one nor a directory is refused."""
        path = self._join(name)
        status = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        _refuse(path, self._rules.link(status, here, self._who))
        self._links += 1
        if self._links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        return os.readlink(name, dir_fd=self.fd)

    def _enter(self, name: str, *, make: bool) -> None:
        path = self._join(name)
        try:
            try:
                found = os.open(name, _STEP, dir_fd=self.fd)
            except FileNotFoundError:
                if not make:
                    raise
                self._make(name)
                found = os.open(name, _STEP, dir_fd=self.fd)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), path) from error
        self._go_to(found, path)

    def _make(self, name: str) -> None:
        with contextlib.suppress(FileExistsError):  # another rank was faster
            os.mkdir(name, self._rules.directory_mode, dir_fd=self.fd)
            _sync(self.fd)
            found = os.open(name, _STEP, dir_fd=self.fd)
            try:
                _set_mode(found, self._rules)
            finally:
                _close(found)

    def _go_to(self, descriptor: int, path: str) -> None:
        self.close()
        self.fd, self.path = descriptor, path

    def _join(self, name: str) -> str:
        return os.path.join(self.path, name)


def _set_mode(descriptor: int, rules: Rules) -> None:
    """Give what was just made the mode that the umask may have taken from it, as far as the file system has modes."""
    mode = os.fstat(descriptor).st_mode
    wanted = rules.wanted_mode(mode)
    if wanted != stat.S_IMODE(mode):
        with contextlib.suppress(OSError):
            os.chmod(f"/proc/self/fd/{descriptor}", wanted)


def _sync(descriptor: int) -> None:
    """Make the entries of a directory durable, given any descriptor of it."""
    readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=descriptor)
    try:
        os.fsync(readable)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        _close(readable)


# --- directories ------------------------------------------------------------------------------------------------------


class Folder:
    """An open directory; what is done in it is done in this one, whatever its name leads to meanwhile.

    A context manager. Names are those of its entries. Made by :func:`open_folder`.

    Attributes:
        path: the way it was reached.
        rules: what holds in it.
    """

    __slots__ = ("_fd", "_held", "path", "rules")

    def __init__(self, path: Path, rules: Rules, descriptor: int | _Held) -> None:
        self.path, self.rules = path, rules
        self._held = descriptor if isinstance(descriptor, _Held) else None
        self._fd = descriptor.fd if isinstance(descriptor, _Held) else descriptor

    @property
    def fd(self) -> int:
        """Descriptor to go on from (``O_PATH``)."""
        return self._fd

    def open(self, name: str, flags: int = os.O_RDONLY, *, over: bool = True) -> int:
        """Open a regular file that is there.

        Args:
            over: whether it will be written over, where ``flags`` would let it be.

        Raises:
            FileNotFoundError, OSError: as ``open(2)``. NotRegularError, ForeignAccessError: it is not used.
        """
        try:
            with storage_operation("open", self.path / name):
                descriptor = os.open(name, flags & ~(os.O_CREAT | os.O_TRUNC) | _FILE, dir_fd=self._fd)
        except OSError as error:
            if error.errno in _NOT_REGULAR:
                raise NotRegularError(self.path / name) from error
            raise
        try:
            status = status_of(descriptor, _who())
            if not stat.S_ISREG(status.st_mode):
                raise NotRegularError(self.path / name)
            writes = over and flags & os.O_ACCMODE != os.O_RDONLY
            check = self.rules.over if writes else self.rules.inside
            _refuse(str(self.path / name), check(status, _who()))
        except BaseException:
            _close(descriptor)
            raise
        return descriptor

    def create(self, name: str, flags: int = os.O_RDWR) -> int:
        """Make a file, empty, under a name that is free.

        Raises:
            FileExistsError, OSError: as ``open(2)``.
        """
        mode = self.rules.file_mode & self._most()
        with storage_operation("open", self.path / name):
            descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL | _FILE, mode, dir_fd=self._fd)
        try:
            _set_mode(descriptor, self.rules)
        except BaseException:
            _close(descriptor)
            raise
        return descriptor

    def _most(self) -> int:
        """What a command makes is for those that may use the directory; what a job makes is as its rules say."""
        return stat.S_IMODE(os.fstat(self._fd).st_mode) if self.rules.reading else 0o777

    def look(self, name: str) -> os.stat_result:
        """``lstat``."""
        with storage_operation("stat", self.path / name):
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False)

    def has(self, name: str) -> bool:
        """Whether there is anything of that name."""
        try:
            self.look(name)
        except FileNotFoundError:
            return False
        return True

    def names(self) -> list[str]:
        """What is in it."""
        with storage_operation("listdir", self.path):
            readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
            try:
                return os.listdir(readable)
            finally:
                _close(readable)

    def directories(self) -> list[str]:
        """The directories in it; no links to any."""
        with storage_operation("scandir", self.path):
            readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)
            try:
                with os.scandir(readable) as entries:
                    return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            finally:
                _close(readable)

    def make(self, name: str) -> None:
        """``mkdir``. Raises FileExistsError if there is one; it is asked whose it is when it is opened."""
        with storage_operation("mkdir", self.path / name):
            os.mkdir(name, self.rules.directory_mode & self._most(), dir_fd=self._fd)
            with self.enter(name) as made:
                _set_mode(made.fd, self.rules)

    def enter(self, name: str) -> Folder:
        """A directory in this one."""
        path = self.path / name
        with storage_operation("open", path):
            descriptor = os.open(name, _STEP, dir_fd=self._fd)
            try:
                _refuse(str(path), self.rules.inside(status_of(descriptor, _who()), _who()))
            except BaseException:
                _close(descriptor)
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
            _sync(self._fd)

    def close(self) -> None:
        """A second call does nothing."""
        descriptor, self._fd = self._fd, -1
        held, self._held = self._held, None
        if descriptor >= 0 and held is None:
            _close(descriptor)

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_folder(path: Path, otherwise: Rules = READING) -> Folder:
    """Open a directory by the rules that hold there.

    Args:
        otherwise: the rules where none were set.

    Raises:
        ForeignAccessError: others could decide what is in it. OSError: it is not there, or not a directory.
    """
    with storage_operation("open", path):
        return _open_folder(path, otherwise)


def _open_folder(path: Path, otherwise: Rules) -> Folder:
    absolute = str(path.absolute())
    found = _rules_for(absolute)
    if found is None:
        return Folder(path, otherwise, _walk(absolute, otherwise))
    root, rules = found
    held = _still_there(root, rules)
    if held is None:
        held = _held[root, rules] = _Held(_walk(root, rules))
    below = _components(absolute[len(root) :])
    if not below:
        return Folder(path, rules, held)
    try:
        return Folder(path, rules, _descend(held.fd, root, below, rules))
    except OSError:
        _held.pop((root, rules), None)  # it may be stale
        raise


def _walk(path: str, rules: Rules) -> int:
    way = _Way(rules)
    try:
        way.follow(path, make=False, last_is_ours=rules.node and not rules.place)
    except BaseException:
        way.close()
        raise
    return way.fd


def _still_there(root: str, rules: Rules) -> _Held | None:
    """The open directory, if its path still leads to it."""
    held = _held.get((root, rules))
    if held is not None:
        status = os.stat(root)
        if held.identity == (status.st_dev, status.st_ino):
            return held
    return None


def _descend(descriptor: int, path: str, names: list[str], rules: Rules) -> int:
    """Go on below a directory that is used: no links, and nothing that others own or can write to."""
    opened = -1
    try:
        while names:
            path = os.path.join(path, names.pop())
            try:
                found = os.open(os.path.basename(path), _STEP, dir_fd=descriptor if opened < 0 else opened)
            except OSError as error:
                raise OSError(error.errno, os.strerror(error.errno or 0), path) from error
            if opened >= 0:
                _close(opened)
            opened = found
            _refuse(path, rules.inside(status_of(opened, _who()), _who()))
    except BaseException:
        if opened >= 0:
            _close(opened)
        raise
    return opened


def make_directory(path: Path, rules: Rules) -> None:
    """Make a directory to be guarded, with its parents, and make their entries durable; one that is there is checked.

    One of a node's that was made before it was to be private is made so.

    Raises:
        ForeignAccessError: others could decide what is in it. OSError: it cannot be made.
    """
    with storage_operation("mkdir", path):
        _make_directory(path, rules)


def _make_directory(path: Path, rules: Rules) -> None:
    way = _Way(rules)
    try:
        way.follow(str(path.absolute()), make=True, last_is_ours=rules.node and not rules.place)
        mode = stat.S_IMODE(os.fstat(way.fd).st_mode)
        if rules.is_private and not rules.place and mode & 0o077:
            with contextlib.suppress(OSError):
                os.chmod(f"/proc/self/fd/{way.fd}", mode & 0o700)
    finally:
        way.close()


# --- single operations, by path ---------------------------------------------------------------------------------------


def _in_parent(path: Path, use: Callable[[Folder, str], Any], otherwise: Rules = READING) -> Any:
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


def check_found(path: Path) -> None:
    """A file that is about to be read because it lies in the working directory, not because somebody has named it.

    Raises:
        ForeignAccessError: everyone may write to the directory, and another user has put it there. OSError: it is gone.
    """
    status, directory = os.lstat(path), os.stat(path.absolute().parent)
    _refuse(str(path.absolute()), planted(status, directory, _who()))


def look(path: Path | str) -> os.stat_result:
    """``lstat``."""
    found: os.stat_result = _in_parent(Path(path), lambda folder, name: folder.look(name))
    return found


def exists(path: Path | str) -> bool:
    """Whether there is anything of that name, if only a link to nothing.

    Raises:
        OSError: that cannot be told.
    """
    try:
        look(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_directory(path: Path) -> bool:
    """Whether it is there and a directory, and no link to one.

    Raises:
        OSError: that cannot be told.
    """
    try:
        return stat.S_ISDIR(look(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def names_in(path: Path) -> list[str]:
    """What is in a directory.

    Raises:
        OSError: as ``listdir``, and for what :func:`open_folder` raises it.
    """
    with open_folder(path) as folder:
        return folder.names()


def directories_in(path: Path) -> list[str]:
    """The directories in a directory; no links to any. Errors as of :func:`names_in`."""
    with open_folder(path) as folder:
        return folder.directories()


def make_folder(path: Path) -> None:
    """Make a directory in one that is there, if it is not there yet, and make its entry durable.

    Raises:
        OSError: it cannot be made; the directory above is not there.
    """
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
