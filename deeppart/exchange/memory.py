"""Memory that exchanges use again and again: taking fresh memory costs more than filling it."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class Arena:
    """One stretch of memory, handed out piece by piece; it grows to the most that was ever needed at a time."""

    def __init__(self) -> None:
        self._memory = np.zeros(0, dtype=np.uint8)

    def cut(self, lengths: list[int]) -> Iterator[Bytes]:
        """Pieces of these lengths, on pages of their own; those handed out before must not be used any more."""
        whole = sum(-(-length // mmap.PAGESIZE) * mmap.PAGESIZE for length in lengths)
        if whole > self._memory.size:
            self._memory = np.frombuffer(mmap.mmap(-1, whole), dtype=np.uint8)
        at = 0
        for length in lengths:
            yield self._memory[at : at + length]
            at += -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
