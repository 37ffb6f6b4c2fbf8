"""The way from the root of the file system to a directory, one open directory after the other.

Each is asked whose it is (:mod:`deeppart.access.rules`) by its descriptor, so that what was checked is what is used,
whatever names are given to other things meanwhile. Links *above* a directory that is used are followed where nobody
else can have put them there. Below it none is.

Where there is an access control list (``acl(5)``), the group's permission bits are its mask: that the group may write
then says nothing of who may, perhaps users whom the list names. The bits alone would pass, where the group is one that
nobody else is in.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from deeppart.access.hanging import storage_operation
from deeppart.access.refusals import refuse
from deeppart.access.rules import Identity, Rules, Status

#: As many symbolic links as the kernel follows.
_MOST_LINKS = 40
#: A directory to go on from: needs no permission to read it.
STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: A regular file, opened without waiting for whoever else has it open.
FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: The entries of a directory.
ENTRIES = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
#: Refusals of ``fsync`` on a directory that mean "cannot and need not".
_NO_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
_NAME = "system.posix_acl_access"
#: linux/posix_acl_xattr.h: a version, then tag, permissions and id of each entry.
_VERSION = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")
_USER, _GROUP, _MASK = 0x02, 0x08, 0x10
_WRITE = 2
_NOBODYS = -1


def walk(path: str, rules: Rules) -> int:
    """Descriptor of a directory by its absolute path."""
    way = _Way(rules)
    try:
        way.follow(path, make=False, last_is_ours=rules.node and not rules.place)
    except BaseException:
        way.close()
        raise
    return way.fd


def descend(descriptor: int, path: str, names: list[str], rules: Rules) -> int:
    """Go on below a directory that is used: no links, and nothing that others own or can write to."""
    opened = -1
    try:
        while names:
            path = os.path.join(path, names.pop())
            try:
                found = os.open(os.path.basename(path), STEP, dir_fd=descriptor if opened < 0 else opened)
            except OSError as error:
                raise OSError(error.errno, os.strerror(error.errno or 0), path) from error
            if opened >= 0:
                close_descriptor(opened)
            opened = found
            refuse(path, rules.inside(status_of(opened, who()), who()))
    except BaseException:
        if opened >= 0:
            close_descriptor(opened)
        raise
    return opened


def make_directory(path: Path, rules: Rules) -> None:
    """Make a directory to be guarded, with its parents, and make their entries durable; one that is there is checked.

    One of a node's that was made before it was to be private is made so.
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


def components(path: str) -> list[str]:
    """Names to go through, the first one last."""
    return [name for name in reversed(path.split("/")) if name and name != "."]


class _Way:
    """The directory that has been reached; exchanged for the next one on the way."""

    def __init__(self, rules: Rules) -> None:
        self._rules, self._who = rules, who()
        self._links = 0
        self.path = "/"
        self.fd = os.open("/", STEP)

    def close(self) -> None:
        descriptor, self.fd = self.fd, -1
        if descriptor >= 0:
            close_descriptor(descriptor)

    def follow(self, path: str, *, make: bool, last_is_ours: bool) -> None:
        """Go to an absolute path through directories and links that others cannot exchange."""
        ahead = components(path)
        while ahead:
            here = status_of(self.fd, self._who)
            refuse(self.path, self._rules.above(here, self._who))
            name = ahead.pop()
            try:
                self._enter(name, make=make)
            except NotADirectoryError:
                if last_is_ours and not ahead:
                    raise
                target = self._read_link(name, here)
                ahead += components(target)
                if target.startswith("/"):
                    self._go_to(os.open("/", STEP), "/")
        refuse(self.path, self._rules.root(status_of(self.fd, self._who), self._who))

    def _read_link(self, name: str, here: Status) -> str:
        """The target of a symbolic link; what is neither a link nor a directory is refused."""
        path = self._join(name)
        status = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        refuse(path, self._rules.link(status, here, self._who))
        self._links += 1
        if self._links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        return os.readlink(name, dir_fd=self.fd)

    def _enter(self, name: str, *, make: bool) -> None:
        path = self._join(name)
        try:
            try:
                found = os.open(name, STEP, dir_fd=self.fd)
            except FileNotFoundError:
                if not make:
                    raise
                self._make(name)
                found = os.open(name, STEP, dir_fd=self.fd)
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), path) from error
        self._go_to(found, path)

    def _make(self, name: str) -> None:
        with contextlib.suppress(FileExistsError):  # another rank was faster
            os.mkdir(name, self._rules.directory_mode, dir_fd=self.fd)
            sync_entries(self.fd)
            found = os.open(name, STEP, dir_fd=self.fd)
            try:
                set_mode(found, self._rules)
            finally:
                close_descriptor(found)

    def _go_to(self, descriptor: int, path: str) -> None:
        self.close()
        self.fd, self.path = descriptor, path

    def _join(self, name: str) -> str:
        return os.path.join(self.path, name)


def status_of(descriptor: int, who: Identity) -> Status:
    """The result of ``fstat``; if an access control list lets others write, with their group, or a group of nobody."""
    status = os.fstat(descriptor)
    if status.st_mode & stat.S_IWGRP:
        writers = _groups_that_may_write(descriptor, who)
        if writers:
            return ListedStatus(status.st_mode, status.st_uid, status.st_nlink, min(writers))
    return status


@dataclass(frozen=True, slots=True)
class ListedStatus:
    """A status with another group: one that may write by a list."""

    st_mode: int
    st_uid: int
    st_nlink: int
    st_gid: int


def _groups_that_may_write(descriptor: int, who: Identity) -> set[int]:
    """Those that a list names; for users, and for groups that this user is not in, one that nobody is in."""
    try:
        data = os.getxattr(f"/proc/self/fd/{descriptor}", _NAME)  # a descriptor of O_PATH cannot be asked
    except OSError:  # there is no list, or there are none on this file system
        return set()
    entries = list(_ENTRY.iter_unpack(data[_VERSION.size :]))
    mask = next((permissions for tag, permissions, _ in entries if tag == _MASK), _WRITE)
    writing = [(tag, name) for tag, permissions, name in entries if permissions & mask & _WRITE]
    groups = {name if name in who.groups else _NOBODYS for tag, name in writing if tag == _GROUP}
    users = {_NOBODYS for tag, name in writing if tag == _USER and name not in (who.uid, 0)}
    return (groups | users) - {who.own_group}


def who() -> Identity:
    """The user and groups that the kernel checks now; an effective user that changes is noticed."""
    return _identity(os.geteuid())


@lru_cache(maxsize=8)
def _identity(uid: int) -> Identity:
    return Identity.current()


def close_descriptor(descriptor: int) -> None:
    """Nothing was written through it that is not synced: what closing it says, says nothing."""
    with contextlib.suppress(OSError):
        os.close(descriptor)


def set_mode(descriptor: int, rules: Rules) -> None:
    """Give what was just made the mode that the umask may have taken from it, as far as the file system has modes."""
    mode = os.fstat(descriptor).st_mode
    wanted = rules.wanted_mode(mode)
    if wanted != stat.S_IMODE(mode):
        with contextlib.suppress(OSError):
            os.chmod(f"/proc/self/fd/{descriptor}", wanted)


def sync_entries(descriptor: int) -> None:
    """Make the entries of a directory durable, given any descriptor of it."""
    readable = os.open(".", ENTRIES, dir_fd=descriptor)
    try:
        os.fsync(readable)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        close_descriptor(readable)
