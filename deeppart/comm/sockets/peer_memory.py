"""Reading the memory of another process of this host, where the kernel allows it: one copy, and no socket.

By ``process_vm_readv(2)``, as MPI libraries do between the ranks of a host. It is allowed to processes of one user,
unless a security module forbids it (Yama's ``ptrace_scope`` above 0, seccomp): then messages take another way.

What is read may be something else by then: its owner may have given the memory up, or have ended, and its number may be
another's. So there is a :class:`Mark` with it. Whoever finds that in place after it has read has read what was offered.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import struct
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

_MARK_BYTES = 16
_BLOCK = struct.Struct(f"<QQQ{_MARK_BYTES}s")


class _IoVec(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


@cache
def _system_call() -> Callable[..., Any] | None:
    """None where the C library has none."""
    try:
        call = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except AttributeError:
        return None
    vectors = ctypes.POINTER(_IoVec)
    call.argtypes = (ctypes.c_int, vectors, ctypes.c_ulong, vectors, ctypes.c_ulong, ctypes.c_ulong)
    call.restype = ctypes.c_ssize_t
    return call


def read_memory(pid: int, address: int, target: npt.NDArray[np.uint8]) -> None:
    """Fill contiguous memory from that of another process, without the interpreter's lock."""
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


class Mark:
    """Random bytes that are in this process's memory for as long as something is offered, and in no other's.

    Attributes:
        address: where.
        content: the bytes.
    """

    __slots__ = ("__weakref__", "_memory", "address", "content")

    def __init__(self) -> None:
        self.content = secrets.token_bytes(_MARK_BYTES)
        self._memory = np.frombuffer(bytearray(self.content), dtype=np.uint8)
        self.address = self._memory.ctypes.data
        _marks.add(self)

    def wipe(self) -> None:
        """Nothing is offered any more. Comes before anything that changes the memory that was."""
        self._memory[:] = 0


#: Process-wide, since a child that is forked has all of them.
_marks: weakref.WeakSet[Mark] = weakref.WeakSet()


def _wipe_all() -> None:
    for mark in list(_marks):
        mark.wipe()


os.register_at_fork(after_in_child=_wipe_all)  # its memory is its own, whatever number it has


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """Where something lies in the memory of the process that offers it.

    Attributes:
        address, nbytes: the memory.
        mark_address, mark: of its :class:`Mark`.
    """

    address: int
    nbytes: int
    mark_address: int
    mark: bytes

    def encode(self) -> bytes:
        """For a message."""
        return _BLOCK.pack(self.address, self.nbytes, self.mark_address, self.mark)

    @classmethod
    def decode(cls, data: bytes) -> MemoryBlock:
        """From what :meth:`encode` has made."""
        return cls(*_BLOCK.unpack(data))

    def read(self, pid: int, offset: int, target: npt.NDArray[np.uint8]) -> None:
        """Read from there; errors as of :func:`read_memory`."""
        read_memory(pid, self.address + offset, target)

    def still_stands(self, pid: int) -> bool:
        """Whether all that has been read until now was what is offered; errors as of :func:`read_memory`."""
        found = np.empty(_MARK_BYTES, dtype=np.uint8)
        read_memory(pid, self.mark_address, found)
        return found.tobytes() == self.mark
