"""Staging memory, which holds a share while it is written.

It is allocated once and grows only when a share does: a copy into warm memory is several times faster than into fresh
pages. Its pages can be touched in the background before the first share is captured. Under an agent it lies in a file,
and outlives this process (``deeppart.storage.memory``); pinned memory does not.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

import torch

from deeppart._pages import fresh_pages
from deeppart.state.tensors import Bytes

#: Pages are touched in pieces of this size; in between the thread can be stopped.
TOUCH_BYTES = 32 << 20
#: Populates pages without changing their contents; from Linux 5.14 on. ``madvise(2)``.
_MADV_POPULATE_WRITE = 23
# Not ``mmap.madvise``, which holds the interpreter lock during the call.
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes, _madvise.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int


class Staging:
    """One reusable buffer of bytes outside the Python heap.

    Args:
        reserve: gives memory of exactly so many bytes that outlives the process, or None if there is none.
    """

    def __init__(self, reserve: Callable[[int], memoryview | None] = lambda nbytes: None) -> None:
        self._reserve = reserve
        self._tensor = torch.empty(0, dtype=torch.uint8, device="cpu")
        self._pinned = False

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self._tensor.numel()

    def reserve(self, nbytes: int, *, pinned: bool = False) -> torch.Tensor:
        """A uint8 tensor of exactly ``nbytes``, reused if it is large enough. Earlier contents are lost."""
        lasting = None if pinned else self._reserve(nbytes)
        if lasting is not None:
            empty = torch.empty(0, dtype=torch.uint8, device="cpu")  # of no bytes torch makes no tensor
            self._tensor, self._pinned = torch.frombuffer(lasting, dtype=torch.uint8) if nbytes else empty, False
        elif nbytes > self.nbytes or (pinned and not self._pinned):
            self.release()  # first, so that both are never held at once
            self._tensor = _allocate(nbytes, pinned)
            self._pinned = pinned
        return self._tensor[:nbytes]

    def populate(self, is_wanted: Callable[[], bool]) -> int:
        """Have the system populate all reserved pages, whose contents stay; returns the bytes touched. Thread-safe.

        A share that is copied meanwhile uses the pages present, and has the others populated as without this call.
        """
        tensor = self._tensor  # keeps the memory mapped
        start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.numel()
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        at = first
        while at < end and is_wanted():
            count = min(TOUCH_BYTES, end - at)
            if _madvise(at, count, _MADV_POPULATE_WRITE):
                break  # an older kernel: the first copy populates them
            at += count
        return at - first

    def release(self) -> None:
        """Free the memory."""
        self._tensor = torch.empty(0, dtype=torch.uint8, device="cpu")


def _allocate(nbytes: int, pinned: bool) -> torch.Tensor:
    if pinned:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    try:
        return torch.frombuffer(fresh_pages(nbytes), dtype=torch.uint8)
    except OSError as error:
        raise MemoryError(f"cannot reserve {nbytes} bytes of staging memory: {error}") from error


def staging_bytes(staged: torch.Tensor) -> Bytes:
    """The staged bytes as a numpy array, without a copy."""
    flat: Bytes = staged.numpy()
    return flat
