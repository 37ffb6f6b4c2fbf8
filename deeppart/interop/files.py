"""Files of foreign checkpoints, read by ``pread``: any number may be open, threads may share one.

Whose they are is not asked (:mod:`deeppart.access.reading`), nothing is mapped into memory (a file that is cut
off meanwhile would end the process), and no length that a file names is believed before it has been compared with the
file's own.
"""

from __future__ import annotations

import errno
import os
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from deeppart import access
from deeppart.access import storage_error
from deeppart.access.hanging import storage_operation
from deeppart.errors import CorruptFileError, RestoreError, StorageError


class Readable(Protocol):
    """Bytes of a foreign checkpoint; the path is for messages."""

    path: str
    size: int

    def read_at(self, offset: int, length: int) -> memoryview:
        """As of :meth:`ForeignFile.read_at`."""
        ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """As of :meth:`ForeignFile.read_into`."""
        ...


class HeldBytes:
    """Bytes that are in memory, read as if they were a file."""

    def __init__(self, data: memoryview, path: str) -> None:
        self.path, self.size = path, data.nbytes
        self._data = data

    def read_at(self, offset: int, length: int) -> memoryview:
        """These bytes themselves, not a copy."""
        check_range(self, offset, length)
        return self._data[offset : offset + length]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset``."""
        buffer.cast("B")[:] = self.read_at(offset, buffer.nbytes)


class ForeignFile:
    """A regular file of a foreign checkpoint, of the size that it had when it was opened. A context manager."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            self._file = access.ReadFile(self.path, foreign=True)
        except access.NotRegularError as error:
            raise CorruptFileError(
                "a file of a checkpoint is no file", expected="a regular file", where=self.path
            ) from error
        except OSError as error:
            raise storage_error("cannot open a file of a foreign checkpoint", error, self.path) from error
        self.size = self._file.status.st_size

    def read_at(self, offset: int, length: int) -> memoryview:
        """Exactly ``length`` bytes from ``offset``; errors as of :meth:`read_into`."""
        check_range(self, offset, length)
        buffer = np.empty(length, dtype=np.uint8).data
        self.read_into(offset, buffer)
        return buffer

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset``."""
        check_range(self, offset, buffer.nbytes)
        rest = buffer.cast("B")
        while rest:
            try:
                with self._file.descriptor() as descriptor, storage_operation("read", self.path):
                    count = os.preadv(descriptor, [rest], offset)
            except OSError as error:
                raise storage_error("cannot read a file of a foreign checkpoint", error, self.path) from error
            if count == 0:
                raise _too_short(self, offset + len(rest), offset)
            rest = rest[count:]
            offset += count

    def descriptor(self) -> AbstractContextManager[int]:
        """The file's descriptor as long as the block lasts, for a library that reads by itself."""
        return self._file.descriptor()

    def close(self) -> None:
        """A second call does nothing."""
        self._file.close()

    def __enter__(self) -> ForeignFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def check_range(file: Readable, offset: int, length: int) -> None:
    """See that there are so many bytes, before any memory is taken for them."""
    if offset < 0 or length < 0 or offset + length > file.size:
        raise _too_short(file, offset + length, file.size)


def _too_short(file: Readable, needed: int, found: int) -> CorruptFileError:
    return CorruptFileError(
        "a file of a foreign checkpoint ends before the bytes that it names",
        expected=f"at least {needed} bytes",
        found=f"{found} bytes",
        where=file.path,
        todo="it was not copied or downloaded completely: fetch it again",
    )


def read_small(path: Path, limit_bytes: int) -> bytes:
    """All of a small file, such as an index."""
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


def names_in(path: Path) -> list[str]:
    """The names of the entries of a directory, sorted."""
    try:
        return sorted(access.names_in_foreign(path))
    except OSError as error:
        raise storage_error("cannot list a foreign checkpoint", error, path) from error


def is_plain_name(name: Any) -> bool:
    """True of a text that can be the name of a file in a directory, and leads nowhere else."""
    if type(name) is not str or os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name:
        return False
    try:
        os.fsencode(name)
    except UnicodeEncodeError:  # halves of surrogate pairs
        return False
    return True


def is_directory(path: Path) -> bool:
    """True for a directory, False for anything else that is there."""
    try:
        return access.is_foreign_directory(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RestoreError("there is no such checkpoint", expected="a file or directory", where=str(path)) from error
    except OSError as error:
        raise storage_error("cannot look at a foreign checkpoint", error, path) from error
