"""The memory of another process."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np

from deeppart.comm.sockets.peer_memory import Mark, MemoryBlock


def offered(memory: np.ndarray[Any, np.dtype[np.uint8]], mark: Mark) -> MemoryBlock:
    return MemoryBlock(memory.ctypes.data, memory.size, mark.address, mark.content)


def test_a_forked_child_offers_nothing() -> None:
    """It has all of its parent's memory, and may get its number once that has died."""
    memory, mark = np.arange(100, dtype=np.uint8), Mark()
    place = offered(memory, mark)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, b"begun")
        signal.pause()
    try:
        os.read(reading, 5)
        assert place.still_stands(os.getpid())
        assert not place.still_stands(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)
