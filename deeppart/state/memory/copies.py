"""Copies by address: thousands of short ones, and copies from memory that may be freed meanwhile.

The kernel makes the latter (``process_vm_writev`` to the calling process): if the source is no longer mapped it returns
an error instead of a fault. Memory that was freed and reused is copied like any other: the caller has to check
afterwards that the source was still valid.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

#: Address ranges per call, at most (Linux: UIO_MAXIOV).
_MOST_RANGES = 1024
#: Errors that mean that the call is not available: an old kernel, or a system call filter.
_NO_SUCH_CALL = frozenset({errno.ENOSYS, errno.EPERM, errno.EACCES})
# CDLL releases the interpreter lock during the call.
_LIBC = ctypes.CDLL(None, use_errno=True)
_memmove = _LIBC.memmove
_memmove.argtypes, _memmove.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_void_p
_writev: Callable[..., int] | None = getattr(_LIBC, "process_vm_writev", None)
if _writev is not None:
    _unsigned, _pointer = ctypes.c_ulong, ctypes.c_void_p
    _writev.argtypes = (ctypes.c_int, _pointer, _unsigned, _pointer, _unsigned, _unsigned)  # type: ignore[attr-defined]
    _writev.restype = ctypes.c_ssize_t  # type: ignore[attr-defined]
# PyDLL keeps the interpreter lock: a thousand small copies need not release and acquire it each.
#: ``memmove(target, source, length)``: addresses and bytes.
memmove = ctypes.PyDLL(None).memmove


def copy_memory(target: int, source: int, length: int) -> bool:
    """Copy bytes between addresses of this process; False if the source is not (all) mapped."""
    return _gather(target, np.array([[source, length]], dtype=np.int64))


def gather_memory(sources: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64] | int) -> npt.NDArray[np.uint8] | None:
    """Bytes from each address, concatenated; None if some of them are not mapped."""
    ranges = np.stack(np.broadcast_arrays(sources, lengths), axis=1)
    found = np.empty(ranges[:, 1].sum(), dtype=np.uint8)
    return found if _gather(found.ctypes.data, ranges) else None


def _gather(target: int, ranges: npt.NDArray[np.int64]) -> bool:
    """Copy (address, length) rows to the target, one after the other."""
    for first in range(0, len(ranges), _MOST_RANGES):
        batch = np.ascontiguousarray(ranges[first : first + _MOST_RANGES])
        total = int(batch[:, 1].sum())
        if not _write(target, batch, total):
            return False
        target += total
    return True


def _write(target: int, batch: npt.NDArray[np.int64], total: int) -> bool:
    if _writev is not None:
        into = np.array([[target, total]], dtype=np.int64)
        done = _writev(os.getpid(), batch.ctypes.data, len(batch), into.ctypes.data, 1, 0)
        if done >= 0 or ctypes.get_errno() not in _NO_SUCH_CALL:
            return done == total
    for address, length in batch.tolist():
        _memmove(target, address, length)
        target += length
    return True


memmove.argtypes, memmove.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_void_p
