"""The way from the root of the file system to a directory, one open directory after the other.

Each is asked whose it is (:mod:`deeppart.access.rules`) by its descriptor, so that what was checked is what is used,
whatever names are given to other things meanwhile. Links *above* a directory that is used are followed where nobody
else can have put them there. Below it none is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from deeppart.access.acl import status_of
from deeppart.access.descriptors import STEP, close_descriptor, set_mode, sync_entries, who
from deeppart.access.hanging import storage_operation
from deeppart.access.refusals import refuse
from deeppart.access.rules import Rules, Status

#: As many symbolic links as the kernel follows.
_MOST_LINKS = 40


def components(path: str) -> list[str]:
    """Names to go through, the first one last."""
    return [name for name in reversed(path.split("/")) if name and name != "."]


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
