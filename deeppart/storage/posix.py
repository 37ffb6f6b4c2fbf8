"""A store in a directory."""

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

#: Errors of ``rmdir`` for a directory that is not empty.
_NOT_EMPTY = frozenset({errno.ENOTEMPTY, errno.EEXIST})


class PosixStore:
    """A store in a directory; see :class:`deeppart.storage.Store`.

    Args:
        root: the directory. If it is bound to a :class:`deeppart.access.Root`, the rules of that apply.
        direct: bypass the page cache in writers if the file system supports it.
        limit: bandwidth limit of writers, or None.
        recycled: files that writers may overwrite, or None.
    """

    def __init__(
        self, root: Path, *, direct: bool = False, limit: RateLimit | None = None, recycled: Recycled | None = None
    ) -> None:
        self.root = root
        self._direct, self._limit, self._recycled = direct, limit, recycled

    def path(self, key: str) -> Path:
        """The path of an object; ValueError if the key leads out of the directory."""
        if key.startswith("/") or ".." in key.split("/"):
            raise ValueError(f"{key!r} is no key")
        return self.root / key if key else self.root

    def where(self, key: str = "") -> str:
        """The path as text."""
        return str(self.path(key))

    def put_new(self, key: str, data: bytes) -> None:
        """Through a temporary file, which is renamed when it is durable."""
        DurableFile(self.path(key), make_parent=False).fill([data])

    def replace(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Likewise, and replaces an existing file."""
        DurableFile(self.path(key), make_parent=False, over="anything", durable=durable).fill([data])

    def get(self, key: str, limit_bytes: int) -> bytes:
        """Read a regular file."""
        path = self.path(key)
        try:
            with os.fdopen(access.open_file(path), "rb") as file, storage_operation("read", path):
                length = os.fstat(file.fileno()).st_size
                data = file.read(min(length, limit_bytes) + 1)  # read() allocates as much as it is asked for
        except access.NotRegularError as error:
            raise CorruptFileError(str(error.strerror), expected="a regular file", where=str(path)) from error
        except OSError as error:
            raise storage_error("cannot read a checkpoint file", error, path) from error
        if len(data) > limit_bytes:
            raise CorruptFileError("a file is too long", expected=f"at most {limit_bytes} bytes", where=str(path))
        return data

    def open(self, key: str) -> FileSource:
        """Open a regular file."""
        return FileSource(self.path(key))

    def stat(self, key: str) -> Stat | None:
        """``lstat`` of a regular file."""
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
        """Begin a file, which has a temporary name until it is committed."""
        return DurableFile(self.path(key), direct=self._direct, limit=self._limit, recycled=self._recycled, over=over)


def _is_removed(path: Path) -> bool:
    """Remove a directory durably; False if it is not empty."""
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
    """:meth:`deeppart.access.Root.make` with storage errors."""
    try:
        return root.make(*below)
    except OSError as error:
        raise storage_error("cannot use a checkpoint directory", error, root.path.joinpath(*below)) from error
