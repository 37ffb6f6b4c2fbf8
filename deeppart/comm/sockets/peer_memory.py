"""Reads the memory of another process on this host, if the kernel allows it: one copy, without a socket.

It uses ``process_vm_readv(2)``, as MPI libraries do between ranks on one host. It is allowed to processes of one user,
unless a security module forbids it (Yama's ``ptrace_scope`` above 0, seccomp): then messages are sent over sockets.

The memory may have changed when it is read: its owner may have freed it, or ended, and its process id may have been
reused. So bytes that were read are used only after the owner has said that it still offers them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt


class _IoVec(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@cache
def _system_call() -> Callable[..., Any] | None:
    """The C library's function; None if it has none."""
    try:
        call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except AttributeError:
        return None
    vectors = ctypes.POINTER(_IoVec)
    call.argtypes = (ctypes.c_int, vectors, ctypes.c_ulong, vectors, ctypes.c_ulong, ctypes.c_ulong)
    call.restype = ctypes.c_ssize_t
    return call


def read_memory(pid: int, address: int, target: npt.NDArray[np.uint8]) -> None:
    """Fill contiguous memory from that of another process, without the interpreter lock."""
    call, done = _system_call(), 0
    if call is None:
        raise OSError(f"no process_vm_readv to read the memory of process {pid} with")
    while done < target.size:
        own = _IoVec(target.ctypes.data + done, target.size - done)
        other = _IoVec(address + done, target.size - done)
        count = call(pid, ctypes.byref(own), 1, ctypes.byref(other), 1, 0)
        if count <= 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), f"process {pid}")
        done += count
