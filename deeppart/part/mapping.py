"""Files as memory, without a descriptor: the module mmap keeps one of its own for each mapping."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

import numpy as np
import numpy.typing as npt

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
    """A stretch of a file as memory, until the last array of it is gone."""

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
