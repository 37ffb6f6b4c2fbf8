"""The sources from which a reader gets the bytes of a part: a file, or memory (a part rebuilt from parity).

Invariants
----------
* ``read_at`` and ``read_into`` return all requested bytes or raise. Sources keep no position, so threads may share one.
* An open file has a descriptor; when the process reaches its limit, that is raised (:mod:`deeppart.access`).
* Only regular files are opened, through :mod:`deeppart.access`: never through a symbolic link below a root, and without
  blocking on a FIFO.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from deeppart import access
from deeppart.access import storage_error
from deeppart.errors import CorruptFileError
from deeppart.part.format import corrupt

#: ``mmap(2)``: reserve no memory for the writable pages, most of which are never written. In Python since 3.13.
_MAP_NORESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000 if os.uname().machine in ("x86_64", "aarch64") else 0)


class ByteSource(Protocol):
    """Random access to the bytes of one part."""

    @property
    def size(self) -> int:
        """Length in bytes."""
        ...

    def read_at(self, offset: int, length: int) -> bytes | memoryview:
        """Return exactly ``length`` bytes from ``offset``, or raise CorruptFileError or StorageError."""
        ...

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` (writable, contiguous) from ``offset``, or raise CorruptFileError or StorageError."""
        ...

    def at_step(self, place: str) -> ByteSource:
        """Open the object of the same name in another step's directory; raises CorruptFileError or StorageError."""
        ...


class StoredBytes(ByteSource, Protocol):
    """An open object of a store. A context manager.

    Attributes:
        written: when it was written, in seconds since 1970.
    """

    written: float

    def reopen(self) -> StoredBytes:
        """Open the same object again, also after this one was closed."""

    def close(self) -> None:
        """Close the object, and everything opened through it. Idempotent."""

    def __enter__(self) -> Self:
        """Return self."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Call :meth:`close`."""


class FileSource:
    """A regular file, read with pread.

    A context manager. Closing it also closes the files of other steps that were opened through it.

    Attributes:
        path: the given path as a string.
        location: the given path, which may be bound to a root.
        size: length in bytes.
        written: time of the last write, in seconds since 1970.
        identity: device and inode.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.location = path if isinstance(path, Path) else Path(path)
        self._others: dict[str, FileSource] = {}
        self._opening = threading.Lock()
        try:
            self._file = access.ReadFile(self.location, access.open_file)
        except access.NotRegularError as error:
            raise corrupt(str(error.strerror), expected="a regular file", where=self.path) from error
        except OSError as error:
            raise storage_error("cannot open a part file", error, self.path) from error
        status = self._file.status
        self.size, self.written = status.st_size, status.st_mtime
        self.identity = status.st_dev, status.st_ino

    def read_at(self, offset: int, length: int) -> memoryview:
        """Return exactly ``length`` bytes from ``offset``."""
        self._check_range(offset, length)
        buffer = np.empty(length, dtype=np.uint8).data  # unlike a bytearray, not zeroed
        self.read_into(offset, buffer)
        return buffer

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset``; errors as for :meth:`read_at`. Releases the GIL."""
        self._check_range(offset, buffer.nbytes)
        try:
            count = self._file.read_into(offset, buffer)
        except OSError as error:
            raise storage_error(
                f"cannot read {buffer.nbytes} bytes at {offset} of a part file", error, self.path
            ) from error
        if count < buffer.nbytes:
            raise self._too_short(offset + buffer.nbytes, offset + count)

    def has_its_name(self) -> bool:
        """True if the path still leads to the open file, which still has its length. Queries the file system."""
        try:
            status = access.lstat(self.location)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise storage_error("cannot look at a part file", error, self.path) from error
        return (status.st_dev, status.st_ino) == self.identity and status.st_size == self.size

    def has_its_length(self) -> bool:
        """True if the open file has the length it had when opened; False also if that cannot be determined."""
        try:
            with self._file.descriptor() as descriptor:
                return os.fstat(descriptor).st_size == self.size
        except OSError:
            return False

    def mapped(self, start: int, stop: int) -> memoryview:
        """Map a range of the file as memory, which stays valid after the source is closed.

        For files in memory or locked in the page cache; for others a read error would be a SIGBUS. The view is
        read-only, but the private mapping is writable: MPICH's broadcasts fail on write-protected pages, and callers of
        ``load(mmap=True)`` may write to the result.
        """
        return self._map(mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE, start, stop)

    def viewed(self) -> memoryview:
        """Map the whole file, like :meth:`mapped` but shared and write-protected, so not usable for MPI broadcasts."""
        return self._map(mmap.MAP_SHARED, mmap.PROT_READ, 0, self.size)

    def _map(self, flags: int, protection: int, start: int, stop: int) -> memoryview:
        self._check_range(start, stop - start)
        if start == stop:
            raise storage_error("cannot map a part file", OSError(errno.EINVAL, "nothing to map"), self.path)
        before = start % mmap.ALLOCATIONGRANULARITY
        try:
            with self._file.descriptor() as descriptor:
                nbytes, offset = before + stop - start, start - before
                found = access.with_room(lambda: mmap.mmap(descriptor, nbytes, flags, protection, offset=offset))
        except (OSError, ValueError) as error:  # ValueError: the file has become shorter
            refusal = error if isinstance(error, OSError) else OSError(errno.EINVAL, str(error))
            raise storage_error("cannot map a part file", refusal, self.path) from error
        return memoryview(found).toreadonly()[before:]

    def at_step(self, place: str) -> FileSource:
        """Return the file of the same name in the sibling directory ``place``, which is opened once."""
        with self._opening:
            if place not in self._others:
                self._others[place] = FileSource(self.location.parent.with_name(place) / self.location.name)
            return self._others[place]

    def reopen(self) -> FileSource:
        """Open the file that has the path now."""
        return FileSource(self.location)

    def close(self) -> None:
        """Close the file and those opened through it. Idempotent."""
        for other in self._others.values():
            other.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_range(self, offset: int, length: int) -> None:
        # called before memory is allocated for the bytes
        if offset < 0 or length < 0 or offset + length > self.size:
            raise self._too_short(offset + length, self.size)

    def _too_short(self, needed: int, found: int) -> CorruptFileError:
        return corrupt(
            "the file ends before the requested bytes",
            expected=f"at least {needed} bytes",
            found=f"{found} bytes",
            where=self.path,
        )


class MemorySource:
    """A part in memory."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "part in memory") -> None:
        self._data = memoryview(data).cast("B").toreadonly()
        self.name = name
        self.size = self._data.nbytes

    def read_at(self, offset: int, length: int) -> memoryview:
        """Return ``length`` bytes from ``offset`` without copying them."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise corrupt(
                "the part ends before the requested bytes",
                expected=f"at least {offset + length} bytes",
                found=f"{self.size} bytes",
                where=self.name,
            )
        return self._data[offset : offset + length]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset``; errors as for :meth:`read_at`."""
        buffer.cast("B")[:] = self.read_at(offset, buffer.nbytes)

    def mapped(self, start: int, stop: int) -> memoryview:
        """Return a range of the part, without a copy."""
        return self._data[start:stop]

    def at_step(self, place: str) -> ByteSource:
        """Raise CorruptFileError: a part in memory has no bases."""
        raise corrupt("a part in memory refers to another step", found=place, where=self.name)
