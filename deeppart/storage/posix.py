"""A directory as a store."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from deeppart import access
from deeppart.access import storage_error
from deeppart.access.hanging import storage_operation
from deeppart.errors import CorruptFileError
from deeppart.part import FileSource
from deeppart.storage.files import DurableFile, Over
from deeppart.storage.rate import RateLimit
from deeppart.storage.spares import Recycled
from deeppart.storage.store import Stat

#: What the system says where a directory is not empty.
_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST})


class PosixStore:
    """A directory; see :class:`deeppart.storage.Store`.

    Args:
        root: the directory. What is opened below it is what its :class:`deeppart.access.Root` allows, if it knows one.
        direct: write objects around the page cache if the file system can.
        limit: of the bandwidth of writers, or None.
        recycled: files that writers write over, or None.
    """

    def __init__(
        self, root: Path, *, direct: bool = False, limit: RateLimit | None = None, recycled: Recycled | None = None
    ) -> None:
        self.root = root
        self._direct, self._limit, self._recycled = direct, limit, recycled

    def path(self, key: str) -> Path:
        """The path of an object; ValueError if the text leads out of the directory, in which other rules hold."""
        if key.startswith("/") or ".." in key.split("/"):
            raise ValueError(f"{key!r} is no key")
        return self.root / key if key else self.root

    def where(self, key: str = "") -> str:
        """The path as a text."""
        return str(self.path(key))

    def put_new(self, key: str, data: bytes) -> None:
        """By a file of another name, which appears under its own when it is durable."""
        DurableFile(self.path(key), make_parent=False).fill([data])

    def replace(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Likewise, in place of what has the name."""
        DurableFile(self.path(key), make_parent=False, over="anything", durable=durable).fill([data])

    def get(self, key: str, limit_bytes: int) -> bytes:
        """Of a regular file."""
        path = self.path(key)
        try:
            with os.fdopen(access.open_file(path), "rb") as file, storage_operation("read", path):
                length = os.fstat(file.fileno()).st_size
                data = file.read(min(length, limit_bytes) + 1)  # it takes memory for as much as it is asked for
        except access.NotRegularError as error:
            raise CorruptFileError(str(error.strerror), expected="a regular file", where=str(path)) from error
        except OSError as error:
            raise storage_error("cannot read a checkpoint file", error, path) from error
        if len(data) > limit_bytes:
            raise CorruptFileError("a file is too long", expected=f"at most {limit_bytes} bytes", where=str(path))
        return data

    def open(self, key: str) -> FileSource:
        """A regular file."""
        return FileSource(self.path(key))

    def stat(self, key: str) -> Stat | None:
        """Of a regular file."""
        path = self.path(key)
        try:
            found = access.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error("cannot look at a checkpoint file", error, path) from error
        if not stat.S_ISREG(found.st_mode):
            raise CorruptFileError("not a regular file", expected="a regular file", where=str(path))
        return Stat(found.st_size, found.st_mtime)

    def list(self, place: str = "") -> list[str]:
        """The entries of a directory."""
        path = self.path(place)
        try:
            return access.names_in(path)
        except OSError as error:
            raise storage_error("cannot list a checkpoint directory", error, path) from error

    def delete(self, place: str, names: Sequence[str], *, durable: bool = True) -> None:
        """Unlink files, and the directory if it is empty."""
        path = self.path(place)
        try:
            with access.open_folder(path) as folder:
                for name in names:
                    folder.remove(name)
                if durable and not (place and _is_removed(path)):
                    folder.sync()
        except OSError as error:
            raise storage_error("cannot remove a checkpoint file", error, path) from error

    def writer(self, key: str, *, over: Over = "nothing") -> DurableFile:
        """A file of another name meanwhile."""
        return DurableFile(self.path(key), direct=self._direct, limit=self._limit, recycled=self._recycled, over=over)


def _is_removed(path: Path) -> bool:
    """Remove a directory, durably; False if there is something in it."""
    with access.open_folder(path.parent) as above:
        try:
            above.remove_directory(path.name)
        except OSError as error:
            if error.errno in _NOT_EMPTY:
                return False
            raise
        above.sync()
    return True


def make_directory(root: access.Root, *below: str) -> Path:
    """Create a directory and its parents, and more in it, durably; what is there is checked. Returns the last."""
    try:
        return root.make(*below)
    except OSError as error:
        raise storage_error("cannot use a checkpoint directory", error, root.path.joinpath(*below)) from error
