"""The memory of another process."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest

from deeppart.comm.sockets import peer_memory
from deeppart.comm.sockets.long_messages import Outgoing
from deeppart.comm.sockets.peer_memory import Mark, MemoryBlock, read_memory

CHILD = """
import numpy as np, sys
there = np.arange(3_000_000, dtype=np.uint8)
print(there.ctypes.data, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child() -> object:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_it_is_read(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    address, target = int(child.stdout.readline()), np.zeros(3_000_000, dtype=np.uint8)
    read_memory(child.pid, address, target)
    assert (target == np.arange(3_000_000, dtype=np.uint8)).all()
    with pytest.raises(OSError, match="Bad address"):
        read_memory(child.pid, 4096, target)
    child.kill()
    child.wait()
    with pytest.raises(ProcessLookupError):
        read_memory(child.pid, address, target)


def test_where_there_is_no_such_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_memory, "_system_call", lambda: None)
    with pytest.raises(OSError, match="process_vm_readv"):
        read_memory(os.getpid(), 0, np.zeros(1, dtype=np.uint8))


def offered(memory: np.ndarray[Any, np.dtype[np.uint8]], mark: Mark) -> MemoryBlock:
    return MemoryBlock(memory.ctypes.data, memory.size, mark.address, mark.content)


def test_a_mark_stands_until_it_is_wiped() -> None:
    memory, mark = np.arange(100, dtype=np.uint8), Mark()
    place = MemoryBlock.decode(offered(memory, mark).encode())
    assert place == offered(memory, mark) and place.mark != Mark().content
    found = np.zeros(10, dtype=np.uint8)
    place.read(os.getpid(), 20, found)
    assert found.tolist() == list(range(20, 30))
    assert place.still_stands(os.getpid())
    mark.wipe()
    assert not place.still_stands(os.getpid())


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


def test_the_mark_of_a_message_is_wiped_before_its_memory_is_let_go() -> None:
    seen: list[bool] = []
    memory = np.arange(100, dtype=np.uint8)
    outgoing = Outgoing((1, 0, 1), memory.data)
    place = outgoing.block()
    weakref.finalize(memory, lambda: seen.append(place.still_stands(os.getpid())))
    assert place.still_stands(os.getpid())
    del memory, outgoing
    gc.collect()
    assert seen == [False]
