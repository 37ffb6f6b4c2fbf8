"""Reading the memory of another process of this host, where the kernel allows it: one copy, and no socket.

By ``process_vm_readv(2)``, as MPI libraries do between the ranks of a host. It is allowed to processes of one user,
unless a security module forbids it (Yama's ``ptrace_scope`` above 0, seccomp): then messages take another way.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt


class _Stretch(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@cache
def _system_call() -> Callable[..., Any] | None:
    """None where the C library has none."""
    try:
        call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except AttributeError:
        return None
    stretches = ctypes.POINTER(_Stretch)
    call.argtypes = (ctypes.c_int, stretches, ctypes.c_ulong, stretches, ctypes.c_ulong, ctypes.c_ulong)
    call.restype = ctypes.c_ssize_t
    return call


def read_memory(pid: int, address: int, target: npt.NDArray[np.uint8]) -> None:
    """Fill contiguous memory from that of another process, without the interpreter's lock.

    Raises:
        OSError: it may not be read, or is not there.
    """
    call, done = _system_call(), 0
    if call is None:
        raise OSError(f"no process_vm_readv to read the memory of process {pid} with")
    while done < target.size:
        own = _Stretch(target.ctypes.data + done, target.size - done)
        other = _Stretch(address + done, target.size - done)
        count = call(pid, ctypes.byref(own), 1, ctypes.byref(other), 1, 0)
        if count <= 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), f"process {pid}")
        done += count
