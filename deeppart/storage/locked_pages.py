"""Files in the page cache, used where they lie: mapped, and held there until they have been used.

Reading a file into fresh memory takes several times as long as checking it where the kernel has it already
(docs/benchmarks.md). But what was checked must be what is used, and a page that is evicted in between is read again
from a device that may have failed since. So the pages are locked (``mlock2(2)`` with ``MLOCK_ONFAULT``), and put in
place by ``madvise(2)`` with ``MADV_POPULATE_READ``, which reports an error of the device where an access would end the
process.

Only on file systems of this node's own devices: those over a network may drop locked pages when another node asks for
the file. Where the limit of locked memory (``ulimit -l``) or the kernel (before 5.14) does not allow it, files are
read.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

import numpy as np
import numpy.typing as npt

from deeppart.errors import StorageError
from deeppart.part import FileSource
from deeppart.storage.mapped import file_system_of

_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"})
_MLOCK_ONFAULT = 1
#: ``madvise(2)``, from Linux 5.14 on.
_MADV_POPULATE_READ = 22
#: Calls by way of ctypes let other threads run meanwhile, which those of the module mmap do not.
_LIBC = ctypes.CDLL(None, use_errno=True)


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


def pin(source: FileSource, start: int, stop: int) -> LockedFile | None:
    """Map a stretch of a file and lock the mapping; None where that is no use, or not possible."""
    if file_system_of(source.file_path) not in _FILE_SYSTEMS:
        return None
    try:
        pinned = LockedFile(source.path, source.mapped(start, stop), start)
        pinned.bring(start, 1)
    except (OSError, AttributeError, StorageError):
        return None
    return pinned


def _call(function: ctypes._NamedFuncPointer, address: int, nbytes: int, option: int) -> None:
    if function(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.c_int(option)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
