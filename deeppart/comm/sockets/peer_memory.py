"""Reads the memory of another process on this host, if the kernel allows it: one copy, without a socket.

It uses ``process_vm_readv(2)``, as MPI libraries do between ranks on one host. It is allowed to processes of one user,
unless a security module forbids it (Yama's ``ptrace_scope`` above 0, seccomp): then messages are sent over sockets.

The memory may have changed when it is read: its owner may have freed it, or ended, and its process id may have been
reused. So there is a :class:`Mark` with it: if the mark is still there after reading, the bytes are those offered.
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


class Mark:
    """Random bytes that are in this process's memory while something is offered, and in no other's.

    Attributes:
        address: their address.
        content: the bytes.
    """

    __slots__ = ("__weakref__", "_memory", "address", "content")

    def __init__(self) -> None:
        self.content = secrets.token_bytes(_MARK_BYTES)
        self._memory = np.frombuffer(bytearray(self.content), dtype=np.uint8)
        self.address = self._memory.ctypes.data
        _marks.add(self)

    def wipe(self) -> None:
        """Withdraw the offer. To be called before the offered memory changes."""
        self._memory[:] = 0


#: Process-wide, because a forked child inherits all of them.
_marks: weakref.WeakSet[Mark] = weakref.WeakSet()


def _wipe_all() -> None:
    for mark in list(_marks):
        mark.wipe()


os.register_at_fork(after_in_child=_wipe_all)  # the child's memory is not offered


@dataclass(frozen=True, slots=True)
class MemoryBlock:
    """A block of memory of the process that offers it.

    Attributes:
        address, nbytes: the memory.
        mark_address, mark: address and content of its :class:`Mark`.
    """

    address: int
    nbytes: int
    mark_address: int
    mark: bytes

    def encode(self) -> bytes:
        """The block as bytes, for a message."""
        return _BLOCK.pack(self.address, self.nbytes, self.mark_address, self.mark)

    @classmethod
    def decode(cls, data: bytes) -> MemoryBlock:
        """The inverse of :meth:`encode`."""
        return cls(*_BLOCK.unpack(data))

    def read(self, pid: int, offset: int, target: npt.NDArray[np.uint8]) -> None:
        """Read bytes of the block; raises the errors of :func:`read_memory`."""
        read_memory(pid, self.address + offset, target)

    def still_stands(self, pid: int) -> bool:
        """True if all bytes read so far were those offered; raises the errors of :func:`read_memory`."""
        found = np.empty(_MARK_BYTES, dtype=np.uint8)
        read_memory(pid, self.mark_address, found)
        return found.tobytes() == self.mark
