"""The sources from which a reader gets the bytes of a part: a file, a section of one, or memory (a part rebuilt from
parity).

Invariants
----------
* ``read_at`` and ``read_into`` give all the bytes asked for or raise; they keep no position, so threads may share a
  source.
* Any number may be open: only so many have a descriptor at a time (:class:`deeppart.access.ReadFile`).
* Only regular files are opened, as :mod:`deeppart.access` reaches them: never through a symbolic link below a directory
  that is guarded, and a FIFO cannot block us.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from types import TracebackType
from typing import Protocol

import numpy as np
import numpy.typing as npt

from deeppart import access
from deeppart.access.hanging import storage_operation
from deeppart.errors import CorruptFileError, StorageError
from deeppart.part.format import corrupt
from deeppart.part.node_file import (
    NODE_FOOTER_BYTES,
    TABLE_NAME_BYTES,
    NodeFooter,
    NodeTable,
    Section,
    SectionPath,
    parse_section_path,
)


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

    def beside(self, name: str) -> ByteSource:
        """The file of that name in the same directory, or raise CorruptFileError or StorageError."""
        ...


class FileSource:
    """A regular file, or a section of a node file, read with pread.

    A context manager; it also closes the files it has opened beside its own. Offsets are those in the section.

    Attributes:
        path: as given.
        file_path: the path of the file, which the section is in.
        size: length in bytes.
        written: when the file was last written to, in seconds since 1970.
        identity: device, inode, and offset of the section in the file: 0 for a file as a whole.
        section: the row of the table; None for a file as a whole.
    """

    def __init__(self, path: str | os.PathLike[str], section: Section | None = None) -> None:
        self.path = os.fspath(path)
        self._beside: dict[str, FileSource] = {}
        self._opening = threading.Lock()
        place = parse_section_path(self.path)
        self.file_path = self.path if place is None else place.file
        self.section = section
        try:
            self._file = access.ReadFile(self.file_path)
        except access.NotRegularError as error:
            raise corrupt(str(error.strerror), expected="a regular file", where=self.path) from error
        except OSError as error:
            raise self._storage_error("cannot open a part file", error) from error
        status = self._file.status
        self.size, self.written = status.st_size, status.st_mtime
        self._offset = 0
        try:
            if place is not None:
                self.section = read_table(self, place).section(place.rank, self.path)
            if self.section is not None:
                self._check_range(self.section.offset, self.section.nbytes)
                self.size, self._offset = self.section.nbytes, self.section.offset
        except BaseException:
            self.close()
            raise
        self.identity = status.st_dev, status.st_ino, self._offset
        self._file_identity = status.st_dev, status.st_ino, status.st_size

    def read_at(self, offset: int, length: int) -> memoryview:
        """Return exactly ``length`` bytes from ``offset``."""
        self._check_range(offset, length)
        buffer = np.empty(length, dtype=np.uint8).data  # bytearray would write zeros first
        self.read_into(offset, buffer)
        return buffer

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset``; errors as for :meth:`read_at`. Releases the GIL."""
        self._check_range(offset, buffer.nbytes)
        rest = buffer.cast("B")
        while rest:
            try:
                with self._file.descriptor() as descriptor, storage_operation("read", self.path):
                    count = os.preadv(descriptor, [rest], self._offset + offset)
            except OSError as error:
                raise self._storage_error(f"cannot read {len(rest)} bytes at {offset} of a part file", error) from error
            if count == 0:
                raise self._too_short(offset + len(rest), offset)
            rest = rest[count:]
            offset += count

    def has_its_name(self) -> bool:
        """True if the file that was opened still has its name and its length; asks the file system."""
        try:
            status = access.lstat(self.file_path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._storage_error("cannot look at a part file", error) from error
        return (status.st_dev, status.st_ino, status.st_size) == self._file_identity

    def mapped(self, start: int, stop: int) -> memoryview:
        """A stretch of it as memory, read-only; stays valid when the source is closed.

        Only for files that lie in memory anyway: elsewhere a read error would be a SIGBUS. A private mapping that could
        be written to, and never is: MPICH's broadcasts fail on pages that are write-protected.
        """
        return self._map(mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE, start, stop)

    def viewed(self) -> memoryview:
        """All of it as memory, as :meth:`mapped`, not to be sent by MPI: no memory is set aside for it."""
        return self._map(mmap.MAP_SHARED, mmap.PROT_READ, 0, self.size)

    def _map(self, flags: int, protection: int, start: int, stop: int) -> memoryview:
        before = (self._offset + start) % mmap.PAGESIZE
        try:
            with self._file.descriptor() as descriptor:
                first = self._offset + start - before
                return map_file(descriptor, first, before + stop - start, flags, protection)[before:]
        except OSError as error:
            raise self._storage_error("cannot map a part file", error) from error

    def beside(self, name: str) -> FileSource:
        """The file ``name`` in the same directory, opened once."""
        with self._opening:
            if name not in self._beside:
                self._beside[name] = FileSource(os.path.join(os.path.dirname(self.file_path), name))
            return self._beside[name]

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        for other in self._beside.values():
            other.close()
        self._file.close()

    def __enter__(self) -> FileSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_range(self, offset: int, length: int) -> None:
        # before any memory is taken for the bytes
        if offset < 0 or length < 0 or offset + length > self.size:
            raise self._too_short(offset + length, self.size)

    def _too_short(self, needed: int, found: int) -> CorruptFileError:
        return corrupt(
            "the file ends before the bytes that were asked for",
            expected=f"at least {needed} bytes",
            found=f"{found} bytes",
            where=self.path,
        )

    def _storage_error(self, summary: str, error: OSError) -> StorageError:
        found = {"found": os.strerror(error.errno or 0), "where": self.path} | access.answers(error)
        return StorageError(summary, errno=error.errno, **found)


def read_table(source: ByteSource, place: SectionPath) -> NodeTable:
    """The table of a node file."""
    return _table(source, place.file, (place.first, place.world_size))


def read_any_table(source: ByteSource, where: str) -> NodeTable:
    """The same, whatever name the file ought to have: as itself says."""
    return _table(source, where, None)


def _table(source: ByteSource, where: str, name: tuple[int, int] | None) -> NodeTable:
    if source.size < NODE_FOOTER_BYTES:
        found = f"{source.size} bytes"
        raise corrupt("a node file is too short", expected=f"{NODE_FOOTER_BYTES} bytes", found=found, where=where)
    data = source.read_at(source.size - NODE_FOOTER_BYTES, NODE_FOOTER_BYTES)
    footer = NodeFooter.decode(data, file_length=source.size, where=where)
    first, world_size = name or NodeTable.name_in(source.read_at(footer.table_offset, TABLE_NAME_BYTES))
    footer.check_length(world_size, where)
    table = source.read_at(footer.table_offset, footer.table_length)
    return NodeTable.decode(table, footer, first, world_size, where=where)


class MemorySource:
    """A part that lies in memory."""

    def __init__(self, data: bytes | bytearray | memoryview, name: str = "part in memory") -> None:
        self._data = memoryview(data).cast("B").toreadonly()
        self.name = name
        self.size = self._data.nbytes

    def read_at(self, offset: int, length: int) -> memoryview:
        """Return ``length`` bytes from ``offset`` without copying them."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise corrupt(
                "the part ends before the bytes that were asked for",
                expected=f"at least {offset + length} bytes",
                found=f"{self.size} bytes",
                where=self.name,
            )
        return self._data[offset : offset + length]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset``; errors as for :meth:`read_at`."""
        buffer.cast("B")[:] = self.read_at(offset, buffer.nbytes)

    def mapped(self, start: int, stop: int) -> memoryview:
        """A stretch of the part, where it lies."""
        return self._data[start:stop]

    def beside(self, name: str) -> ByteSource:
        """There is no other."""
        raise corrupt("a part in memory has no other files beside it", expected=name, where=self.name)


_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,  # off_t
)
_LIBC.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
_FAILED = ctypes.c_void_p(-1).value


class _Mapping:
    """A stretch of a file as memory, until the last array of it is gone.

    It keeps no descriptor, as the module mmap does for each mapping.
    """

    def __init__(self, descriptor: int, offset: int, nbytes: int, flags: int, protection: int) -> None:
        self._address: int | None = None
        address = _LIBC.mmap(None, nbytes, protection, flags, descriptor, offset)
        if address == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._address, self._nbytes = address, nbytes
        is_read_only = not protection & mmap.PROT_WRITE
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, is_read_only),
        }

    def __del__(self) -> None:
        if self._address is not None:
            _LIBC.munmap(self._address, self._nbytes)


def map_file(descriptor: int, offset: int, nbytes: int, flags: int, protection: int) -> memoryview:
    """So many bytes of a file as memory, read-only for who gets it; stays valid when the file is closed."""
    if not 0 < nbytes <= os.fstat(descriptor).st_size - offset:
        raise OSError(errno.EINVAL, "the file is shorter than what was to be mapped")
    memory: npt.NDArray[np.uint8] = np.asarray(_Mapping(descriptor, offset, nbytes, flags, protection))
    return memory.data.toreadonly()
