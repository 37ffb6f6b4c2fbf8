"""Files used as memory: those that lie in memory (tmpfs, ramfs), and those that are locked in the page cache.

On a tmpfs, files are written, sent and received where they lie. A mapping is kept from one checkpoint to the next,
since a rank writes over the same few files again and again, and mapping a file takes longer than copying it
(docs/decisions/0006). It is given up when its file has been removed, when the level is closed, and in forked processes,
which would hold on to the memory of removed files. Only pages that are there are mapped, so that using the memory
cannot fail for lack of space. Memory that was handed out stays valid when its mapping is given up.

On a disk of this node, reading into fresh memory takes several times as long as checking a file where the kernel has it
already (docs/benchmarks.md). But what was checked must be what is used, and a page that is evicted in between is read
again from a device that may have failed since. So the pages are locked (``mlock2(2)`` with ``MLOCK_ONFAULT``), and put
in place by ``madvise(2)`` with ``MADV_POPULATE_READ``, which reports an error of the device where an access would end
the process. File systems over a network may drop locked pages when another node asks for the file; there, and where
the limit of locked memory (``ulimit -l``) or the kernel (before 5.14) does not allow it, files are read.
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

#: Pages are put in place in units of this.
_UNIT_BYTES = 8 << 20
#: Puts pages in place, ready to be written to; from Linux 5.14 on. ``madvise(2)``; without it the first access does.
_MADV_POPULATE_WRITE = 23
_IN_MEMORY = ("tmpfs", "ramfs")
_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"})
_MLOCK_ONFAULT = 1
#: ``madvise(2)``, from Linux 5.14 on.
_MADV_POPULATE_READ = 22
#: Calls by way of ctypes let other threads run meanwhile, which those of the module mmap do not.
_LIBC = ctypes.CDLL(None, use_errno=True)


def file_memory(descriptor: int, start: int, length: int) -> npt.NDArray[np.uint8] | None:
    """Memory that is a stretch of a file: what is written there is in the file."""
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
    """Length of a file whose pages are all there, on a file system in memory; 0 of any other."""
    status = os.fstat(descriptor)
    return status.st_size if _is_whole(status) and _is_memory(status.st_dev) else 0


def forget_removed() -> None:
    """Give up the mappings of removed files, whose memory would stay taken."""
    with _kept.lock:
        for key in [key for key, mapping in _kept.mappings.items() if mapping.is_removed()]:
            del _kept.mappings[key]


def forget_all() -> None:
    """Give up all mappings."""
    with _kept.lock:
        _kept.mappings.clear()


class _Mapping:
    """One file, all of it."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self._window = mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED)
        self.memory = np.frombuffer(self._window, dtype=np.uint8)
        self._there: set[int] = set()
        self._descriptor = os.dup(descriptor)

    def populate(self, start: int, length: int) -> None:
        """Put pages in place at once, where they are not yet: one by one takes three times as long."""
        for unit in range(start // _UNIT_BYTES, -(-(start + length) // _UNIT_BYTES)):
            if unit not in self._there:
                at = unit * _UNIT_BYTES
                with contextlib.suppress(OSError):  # an older kernel, or a file that was cut
                    self._window.madvise(_MADV_POPULATE_WRITE, at, min(_UNIT_BYTES, self.memory.size - at))
                    self._there.add(unit)

    def is_removed(self) -> bool:
        """True if the file has no name any more."""
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
    """The mappings of this process, by device and inode: a mapped file keeps its inode."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.mappings: dict[tuple[int, int], _Mapping] = {}

    def after_fork(self) -> None:
        """Start over, in the child."""
        self.lock = threading.Lock()  # another thread of the parent may have held it
        self.mappings = {}


_kept = _Kept()

os.register_at_fork(after_in_child=_kept.after_fork)


def pin(source: FileSource, start: int, stop: int) -> LockedFile | None:
    """Map a stretch of a file and lock the mapping; None where that is no use, or not possible."""
    if file_system_of(source.path) not in _FILE_SYSTEMS:
        return None
    try:
        pinned = LockedFile(source.path, source.mapped(start, stop), start)
        pinned.bring(start, 1)
    except (OSError, AttributeError, StorageError):
        return None
    return pinned


class LockedFile:
    """A file as memory, whose pages stay once they have been brought."""

    def __init__(self, path: str, memory: memoryview, start: int) -> None:
        self.memory = memory
        self._path, self._start = path, start
        self._address = int(np.frombuffer(memory, dtype=np.uint8).__array_interface__["data"][0])
        _call(_LIBC.mlock2, self._address, memory.nbytes, _MLOCK_ONFAULT)

    def bring(self, offset: int, length: int) -> None:
        """Read so many bytes of the file into memory, if they are not there yet: some of the stretch."""
        try:
            _populate(self._address + offset - self._start, length)
        except OSError as error:
            raise _unreadable(f"cannot read {length} bytes at {offset} of a part file", self._path, error) from error


def bring_pages(memory: npt.NDArray[np.uint8], path: str) -> None:
    """Put the pages of a mapped file in place at once, where they are not yet: one by one takes three times as long."""
    if not memory.nbytes:
        return
    try:
        _populate(int(memory.__array_interface__["data"][0]), memory.nbytes)
    except OSError as error:
        if error.errno != errno.EINVAL:  # an older kernel: the first access does it
            raise _unreadable(f"cannot read {memory.nbytes} bytes of a part file", path, error) from error


def _unreadable(summary: str, path: str, error: OSError) -> StorageError:
    return StorageError(summary, errno=error.errno, found=os.strerror(error.errno or 0), where=path)


def _populate(address: int, length: int) -> None:
    start = address - address % mmap.PAGESIZE
    _call(_LIBC.madvise, start, address + length - start, _MADV_POPULATE_READ)


def _call(function: ctypes._NamedFuncPointer, address: int, nbytes: int, option: int) -> None:
    if function(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.c_int(option)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def lies_in_memory(path: Path | str) -> bool:
    """True if a file is on a file system that keeps it in memory (tmpfs, ramfs): mapping it cannot fail to read."""
    return file_system_of(path) in _IN_MEMORY


def file_system_of(path: Path | str) -> str:
    """The type of a file's file system, as mount(8) names it; "" where it cannot be found out."""
    try:
        with storage_operation("stat", path):
            return _file_system(os.stat(path).st_dev)
    except OSError:
        return ""


@functools.cache
def running_kernel() -> str:
    """A name of the kernel of this process, new at every boot; "" where it cannot be found out.

    Processes under one kernel that have a file of the same device and inode open have the same file.
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
