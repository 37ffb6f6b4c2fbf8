"""Copying and writing as fast as this machine can: memory, the C library's copy, and files written around the cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import torch

BLOCK_BYTES = 8 << 20
_PAGE_BYTES = 4096

memmove = ctypes.CDLL(None).memmove
memmove.argtypes, memmove.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t], ctypes.c_void_p


def warm_memory(nbytes: int) -> mmap.mmap:
    """Memory on huge pages where the system has them, aligned for direct writes, every page touched."""
    memory = fresh_memory(nbytes)
    touch(memory)
    return memory


def fresh_memory(nbytes: int) -> mmap.mmap:
    """The same, no page touched."""
    padded = -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES
    memory = mmap.mmap(-1, padded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def touch(memory: mmap.mmap) -> None:
    """Have the system give every page."""
    torch.frombuffer(memory, dtype=torch.uint8).zero_()


def cut(buffer: torch.Tensor, share: list[torch.Tensor]) -> list[torch.Tensor]:
    """Room in a buffer for each view, one after the other."""
    targets, at = [], 0
    for view in share:
        targets.append(buffer[at : at + view.nbytes].view(view.dtype))
        at += view.nbytes
    return targets


def copy_each(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy leaf by leaf, by the C library."""
    for target, source in zip(targets, sources, strict=True):
        memmove(target.data_ptr(), source.data_ptr(), source.nbytes)


def copy_each_with_torch(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """The same by torch."""
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def writer(path: Path, memory: mmap.mmap, nbytes: int, direct: bool) -> Callable[[], None]:
    """Write the memory to a file and sync it; ``direct`` bypasses the page cache, whole pages only."""
    whole = nbytes if not direct else max(_PAGE_BYTES, nbytes - nbytes % _PAGE_BYTES)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | (os.O_DIRECT if direct else 0)

    def write() -> None:
        descriptor = _open(path, flags)
        view = memoryview(memory)[:whole]
        at = 0
        while at < whole:
            at += os.write(descriptor, view[at : at + BLOCK_BYTES])
        os.fsync(descriptor)
        os.close(descriptor)
        view.release()

    return write


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags, 0o600)
    except OSError:  # this file system knows no direct writes
        return os.open(path, flags & ~os.O_DIRECT, 0o600)
