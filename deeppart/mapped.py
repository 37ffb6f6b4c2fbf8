"""Memory-mapped files: in tmpfs or ramfs, or locked in the page cache.

Files in tmpfs are written, sent and received through mappings. A mapping is kept between checkpoints, since a rank
overwrites the same files, and mapping a file takes longer than copying it (docs/decisions/0006). It is dropped when its
file is removed, when the level is closed, and in forked processes, as it would keep the memory of removed files. Only
files without holes are mapped, so that accesses cannot fail for lack of space. Arrays stay valid after their mapping
has been dropped.

On a local disk, verifying a file in the page cache is several times as fast as reading it into fresh memory
(docs/benchmarks.md). But the verified bytes must be those that are used later, and an evicted page would be read again
from a device that may have failed. So the pages are locked (``mlock2(2)`` with ``MLOCK_ONFAULT``) and populated with
``MADV_POPULATE_READ``, which reports device errors where an access would kill the process. Network file systems may
drop locked pages when another node accesses the file; there, and if the limit of locked memory (``ulimit -l``) or the
kernel (before 5.14) does not allow it, files are read instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import threading
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deeppart.access.hanging import storage_operation
from deeppart.errors import StorageError
from deeppart.part import FileSource

#: Mappings are populated in units of this size.
_UNIT_BYTES = 8 << 20
_IN_MEMORY = ("tmpfs", "ramfs")
_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"})
_MLOCK_ONFAULT = 1
#: ``madvise(2)``, since Linux 5.14. Without them the first access populates a page.
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23
#: Calls through ctypes release the GIL; those of the mmap module do not.
_LIBC = ctypes.CDLL(None, use_errno=True)


def file_memory(descriptor: int, start: int, length: int) -> npt.NDArray[np.uint8] | None:
    """A shared mapping of a byte range of a file in memory; None if it cannot be mapped."""
    try:
        status = os.fstat(descriptor)
        if not 0 < start + length <= status.st_size or not _is_whole(status):
            return None
        key = (status.st_dev, status.st_ino)
        with _kept.lock:
            mapping = _kept.mappings.get(key)
            if mapping is None or mapping.memory.size < start + length:
                if not _is_memory(status.st_dev):
                    return None
                mapping = _kept.mappings[key] = _Mapping(descriptor, status.st_size)
            mapping.populate(start, length)
    except (OSError, ValueError):
        return None
    return mapping.memory[start : start + length]


def bytes_in_memory(descriptor: int) -> int:
    """The size of a file without holes on tmpfs or ramfs; 0 for others."""
    status = os.fstat(descriptor)
    return status.st_size if _is_whole(status) and _is_memory(status.st_dev) else 0


def forget_removed() -> None:
    """Drop the mappings of removed files, to free their memory."""
    with _kept.lock:
        for key in [key for key, mapping in _kept.mappings.items() if mapping.is_removed()]:
            del _kept.mappings[key]


def forget_all() -> None:
    """Drop all mappings."""
    with _kept.lock:
        _kept.mappings.clear()


class _Mapping:
    """A mapping of a whole file."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self._window = mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED)
        self.memory = np.frombuffer(self._window, dtype=np.uint8)
        self._populated: set[int] = set()
        self._descriptor = os.dup(descriptor)

    def populate(self, start: int, length: int) -> None:
        """Populate pages, which takes a third of the time of page faults."""
        for unit in range(start // _UNIT_BYTES, -(-(start + length) // _UNIT_BYTES)):
            if unit not in self._populated:
                offset = unit * _UNIT_BYTES
                with contextlib.suppress(OSError):  # an older kernel, or a truncated file
                    self._window.madvise(_MADV_POPULATE_WRITE, offset, min(_UNIT_BYTES, self.memory.size - offset))
                    self._populated.add(unit)

    def is_removed(self) -> bool:
        """True if the file has been unlinked."""
        try:
            return os.fstat(self._descriptor).st_nlink == 0
        except OSError:
            return True

    def __del__(self) -> None:
        descriptor: int | None = getattr(self, "_descriptor", None)
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)


class _Kept:
    """The mappings of this process, by device and inode, which stays in use while a file is mapped."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.mappings: dict[tuple[int, int], _Mapping] = {}

    def after_fork(self) -> None:
        """Reset in the child."""
        self.lock = threading.Lock()  # a thread of the parent may hold it
        self.mappings = {}


_kept = _Kept()

os.register_at_fork(after_in_child=_kept.after_fork)


def memory_in_place(source: FileSource, start: int, stop: int) -> memoryview | None:
    """A byte range of a file as memory that keeps its bytes once they are populated: of a file in memory, or locked in
    the page cache; None if that is not possible.
    """
    try:
        if lies_in_memory(source.path):
            return source.mapped(start, stop)
        if file_system_of(source.path) not in _FILE_SYSTEMS:
            return None
        memory = source.mapped(start, stop)
        address = int(np.frombuffer(memory, dtype=np.uint8).__array_interface__["data"][0])
        _call(_LIBC.mlock2, address, memory.nbytes, _MLOCK_ONFAULT)
        _populate(address, 1)
    except (OSError, AttributeError, StorageError):  # by the limit, the library, the kernel, or the address space
        return None
    return memory


def populate_pages(memory: npt.NDArray[np.uint8], path: str) -> None:
    """Populate the pages of a mapped file, which takes a third of the time of page faults."""
    if not memory.nbytes:
        return
    try:
        _populate(int(memory.__array_interface__["data"][0]), memory.nbytes)
    except OSError as error:
        if error.errno != errno.EINVAL:  # an older kernel: page faults populate them
            raise StorageError(
                f"cannot read {memory.nbytes} bytes of a part file",
                errno=error.errno,
                found=os.strerror(error.errno or 0),
                where=path,
            ) from error


def _populate(address: int, length: int) -> None:
    start = address - address % mmap.PAGESIZE
    _call(_LIBC.madvise, start, address + length - start, _MADV_POPULATE_READ)


def _call(function: ctypes._NamedFuncPointer, address: int, nbytes: int, option: int) -> None:
    if function(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.c_int(option)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def lies_in_memory(path: Path | str) -> bool:
    """True if a file is on tmpfs or ramfs, so that reading a mapping of it cannot fail."""
    return file_system_of(path) in _IN_MEMORY


def file_system_of(path: Path | str) -> str:
    """The type of a file's file system, as in mount(8); "" if it cannot be determined."""
    try:
        with storage_operation("stat", path):
            return _file_system(os.stat(path).st_dev)
    except OSError:
        return ""


@functools.cache
def running_kernel() -> str:
    """The boot id of the kernel; "" if it cannot be determined.

    Under one kernel, equal device and inode numbers of open files mean the same file.
    """
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeError):
        return ""


def _is_whole(status: os.stat_result) -> bool:
    return status.st_blocks * 512 >= status.st_size


def _is_memory(device: int) -> bool:
    return _file_system(device) in _IN_MEMORY


def _file_system(device: int) -> str:
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    name = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:  # "36 35 98:0 /root /mount options - fstype source options"
        mount, _, kind = line.partition(" - ")
        if mount.split()[2:3] == [name]:
            return (kind.split() or [""])[0]
    return ""
