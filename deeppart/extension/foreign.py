"""Files of foreign checkpoints, read by ``pread``: any number may be open, threads may share one.

Whose they are is not asked (:func:`deeppart.access.open_foreign`), nothing is mapped into memory (a file that is cut
off meanwhile would end the process), and no length that a file names is believed before it has been compared with the
file's own.
"""

from __future__ import annotations

import errno
import os
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import numpy as np

from deeppart import access
from deeppart.access import storage_error
from deeppart.errors import CorruptFileError, RestoreError, StorageError
from deeppart.storage import PosixStore


class ForeignFile:
    """A regular file that others have written, of the size that it had when it was opened. A context manager.

    It may be anybody's. A length that the file names is compared with the file's own before memory is taken for it.

    Attributes:
        path: of the file.
        size: in bytes.

    Raises:
        CorruptFileError: it is no regular file. StorageError: it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            self._file = access.ReadFile(Path(path), access.open_foreign)
        except access.NotRegularError as error:
            raise CorruptFileError(
                "a file of a checkpoint is no file", expected="a regular file", where=self.path
            ) from error
        except OSError as error:
            raise storage_error("cannot open a file of a foreign checkpoint", error, self.path) from error
        self.size = self._file.status.st_size

    def read_at(self, offset: int, length: int) -> memoryview:
        """Exactly ``length`` bytes from ``offset``; errors as of :meth:`read_into`."""
        _check_range(self, offset, length)
        buffer = np.empty(length, dtype=np.uint8).data
        self.read_into(offset, buffer)
        return buffer

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset``."""
        _check_range(self, offset, buffer.nbytes)
        try:
            count = self._file.read_into(offset, buffer)
        except OSError as error:
            raise storage_error("cannot read a file of a foreign checkpoint", error, self.path) from error
        if count < buffer.nbytes:
            raise _too_short(self, offset + buffer.nbytes, offset + count)

    def descriptor(self) -> AbstractContextManager[int]:
        """The file's descriptor as long as the block lasts, for a library that reads by itself."""
        return self._file.descriptor()

    @staticmethod
    def holding(data: bytes | memoryview, path: str) -> ForeignFile:
        """Bytes in memory, read as if they were a file; the path is for messages."""
        return _HeldBytes(memoryview(data), path)

    @staticmethod
    def read_all(path: Path, limit_bytes: int) -> bytes:
        """All of a small file, such as an index.

        Raises:
            FileNotFoundError: there is none. CorruptFileError: it is longer than ``limit_bytes``.
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
        """The names of the entries of a directory, sorted; None for anything else that is there.

        Raises:
            RestoreError: there is nothing. StorageError: it cannot be read.
        """
        try:
            return sorted(access.names_in(path))
        except (FileNotFoundError, NotADirectoryError) as error:
            if isinstance(error, NotADirectoryError) and access.exists(path):
                return None
            raise RestoreError(
                "there is no such checkpoint", expected="a file or directory", where=str(path)
            ) from error
        except OSError as error:
            raise storage_error("cannot list a foreign checkpoint", error, path) from error

    def close(self) -> None:
        """A second call does nothing."""
        self._file.close()

    def __enter__(self) -> ForeignFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _HeldBytes(ForeignFile):
    """Bytes that are in memory; they are not copied."""

    def __init__(self, data: memoryview, path: str) -> None:
        self.path, self.size = path, data.nbytes
        self._data = data

    def read_at(self, offset: int, length: int) -> memoryview:
        _check_range(self, offset, length)
        return self._data[offset : offset + length]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        buffer.cast("B")[:] = self.read_at(offset, buffer.nbytes)

    def close(self) -> None:
        """Nothing is open."""


def _check_range(file: ForeignFile, offset: int, length: int) -> None:
    """See that there are so many bytes, before any memory is taken for them."""
    if offset < 0 or length < 0 or offset + length > file.size:
        raise _too_short(file, offset + length, file.size)


def _too_short(file: ForeignFile, needed: int, found: int) -> CorruptFileError:
    return CorruptFileError(
        "a file of a foreign checkpoint ends before the bytes that it names",
        expected=f"at least {needed} bytes",
        found=f"{found} bytes",
        where=file.path,
        todo="it was not copied or downloaded completely: fetch it again",
    )


def write_file(path: Path, data: bytes) -> None:
    """Write a small file durably and atomically, in place of what has the name; its directory is made, if need be."""
    try:
        access.make_folder(path.parent)
    except OSError as error:
        raise storage_error("cannot make a directory", error, path.parent) from error
    PosixStore(path.parent).replace(path.name, data)
