"""Memory that exchanges use again and again: taking fresh memory costs more than filling it."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class Arena:
    """One stretch of memory, handed out piece by piece; it grows to the most that was ever needed at a time.

    Whoever takes pieces gives them back when nothing is under way in them any more. Memory of an exchange that was
    given up is not handed out again: what was under way may still arrive.
    """

    def __init__(self) -> None:
        self._memory = np.zeros(0, dtype=np.uint8)
        self._lent = False

    def cut(self, lengths: list[int]) -> list[Bytes]:
        """Pieces of these lengths, on pages of their own, for one exchange at a time."""
        ends = np.cumsum([-(-length // mmap.PAGESIZE) * mmap.PAGESIZE for length in lengths]).tolist()
        if self._lent or ends[-1] > self._memory.size:
            self._memory = np.frombuffer(mmap.mmap(-1, ends[-1]), dtype=np.uint8)
        self._lent = True
        return [self._memory[at : at + length] for at, length in zip([0, *ends], lengths, strict=False)]

    def give_back(self) -> None:
        """All pieces may be handed out again."""
        self._lent = False
