"""Memory that a thread's codecs use again from chunk to chunk: fresh pages would cost as much as the work in them."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt


class Scratch(threading.local):
    """Named arrays of the calling thread; what lies in them lasts until the same name is taken again."""

    def __init__(self) -> None:
        self._memory: dict[str, npt.NDArray[np.uint8]] = {}

    def take(self, name: str, count: int, kind: type[np.unsignedinteger]) -> npt.NDArray[np.unsignedinteger]:
        """An array of ``count`` values of ``kind``, contents undefined."""
        nbytes = count * np.dtype(kind).itemsize
        memory = self._memory.get(name)
        if memory is None or memory.nbytes < nbytes:
            memory = self._memory[name] = np.empty(nbytes, np.uint8)
        return memory[:nbytes].view(kind)


SCRATCH = Scratch()
