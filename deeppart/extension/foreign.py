"""Files of foreign checkpoints, read with ``pread``; thread-safe.

Their owner is not checked (:func:`deeppart.access.open_foreign`). They are not mapped, as truncation would kill the
process. Ranges are checked against the file size before memory is allocated.
"""

from __future__ import annotations

import errno
import os
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np

from deeppart import access
from deeppart.access import storage_error
from deeppart.config import refuse_url
from deeppart.errors import CorruptFileError, RestoreError, StorageError
from deeppart.storage import PosixStore


class ForeignFile:
    """A regular file of a foreign checkpoint, opened for reading. A context manager.

    Its owner is not checked. Reads beyond its size fail before memory is allocated.

    Attributes:
        path: path of the file.
        size: size in bytes when it was opened.

    Raises:
        CorruptFileError: it is not a regular file. StorageError: it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            self._file = access.ReadFile(Path(path), access.open_foreign)
        except access.NotRegularError as error:
            raise CorruptFileError(
                "a path of a foreign checkpoint is not a regular file", expected="a regular file", where=self.path
            ) from error
        except OSError as error:
            raise storage_error("cannot open a file of a foreign checkpoint", error, self.path) from error
        self.size = self._file.status.st_size

    @staticmethod
    def write(path: Path, data: bytes) -> None:
        """Write or replace a small file durably and atomically; creates its directory if missing."""
        try:
            access.make_folder(path.parent)
        except OSError as error:
            raise storage_error("cannot make a directory", error, path.parent) from error
        PosixStore(path.parent).replace(path.name, data)

    def read_at(self, offset: int, length: int) -> memoryview:
        """Read exactly ``length`` bytes at ``offset``; raises as :meth:`read_into`."""
        _check_range(self, offset, length)
        buffer = np.empty(length, dtype=np.uint8).data
        self.read_into(offset, buffer)
        return buffer

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes at ``offset``.

        Raises:
            CorruptFileError: the file is too short. StorageError: it cannot be read.
        """
        _check_range(self, offset, buffer.nbytes)
        try:
            count = self._file.read_into(offset, buffer)
        except OSError as error:
            raise storage_error("cannot read a file of a foreign checkpoint", error, self.path) from error
        if count < buffer.nbytes:
            raise _too_short(self, offset + buffer.nbytes, offset + count)

    def descriptor(self) -> AbstractContextManager[int]:
        """A context manager for the file descriptor, for libraries that read files themselves."""
        return self._file.descriptor()

    @staticmethod
    def read_all(path: Path, limit_bytes: int) -> bytes:
        """Read a small file, such as an index.

        Raises:
            FileNotFoundError: it does not exist. CorruptFileError: it is longer than ``limit_bytes``.
        """
        try:
            opened = ForeignFile(path)
        except StorageError as error:
            if error.errno == errno.ENOENT:
                raise FileNotFoundError(str(path)) from error
            raise
        with opened as file:
            if file.size > limit_bytes:
                raise CorruptFileError(
                    "a file of a foreign checkpoint is too long",
                    expected=f"at most {limit_bytes} bytes",
                    found=f"{file.size} bytes",
                    where=str(path),
                )
            return bytes(file.read_at(0, file.size))

    @staticmethod
    def names_in(path: Path) -> list[str] | None:
        """The sorted names in a directory; None if the path is not a directory.

        Raises:
            RestoreError: the path does not exist. StorageError: it cannot be read.
        """
        refuse_url("the checkpoint", path)
        try:
            return sorted(access.names_in(path))
        except (FileNotFoundError, NotADirectoryError) as error:
            if isinstance(error, NotADirectoryError) and access.exists(path):
                return None
            raise RestoreError(
                "the checkpoint does not exist", expected="a file or directory", where=str(path)
            ) from error
        except OSError as error:
            raise storage_error("cannot list a foreign checkpoint", error, path) from error

    def close(self) -> None:
        """Close the file; further calls do nothing."""
        self._file.close()

    def __enter__(self) -> ForeignFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_range(file: ForeignFile, offset: int, length: int) -> None:
    """Check a range before memory is allocated for it."""
    if offset < 0 or length < 0 or offset + length > file.size:
        raise _too_short(file, offset + length, file.size)


def _too_short(file: ForeignFile, needed: int, found: int) -> CorruptFileError:
    return CorruptFileError(
        "a file of a foreign checkpoint is shorter than its metadata says",
        expected=f"at least {needed} bytes",
        found=f"{found} bytes",
        where=file.path,
        todo="it was not copied or downloaded completely: fetch it again",
    )


class Source(Protocol):
    """The bytes of a storage: of one tensor in C order, or of several views."""

    @property
    def nbytes(self) -> int:
        """The size of the storage."""
        ...

    def read_into(self, start: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from byte ``start``; fastest in ascending order, each byte once."""
        ...
