"""The memory of another process."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from deeppart.comm.sockets import peer_memory
from deeppart.comm.sockets.peer_memory import read_memory

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
