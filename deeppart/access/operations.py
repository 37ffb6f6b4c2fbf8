"""Single operations by path, each in the open directory that the path's parent leads to. Paths serve for messages."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deeppart.access.acl import status_of
from deeppart.access.descriptors import close_descriptor, who
from deeppart.access.folders import Folder, open_folder
from deeppart.access.refusals import ForeignAccessError, NotRegularError, refuse
from deeppart.access.room import with_room
from deeppart.access.rules import READING, Rules, planted


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
