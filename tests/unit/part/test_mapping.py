"""Files as memory."""

from __future__ import annotations

import errno
import gc
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from deeppart.part.source import map_file

DATA = bytes(range(256)) * 64


def mappings_of(path: Path) -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count(str(path))


@pytest.mark.parametrize(
    ("flags", "protection"),
    [(mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE), (mmap.MAP_SHARED, mmap.PROT_READ)],
)
def test_memory_outlives_the_file_and_goes_with_its_last_user(tmp_path: Path, flags: int, protection: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    descriptor = os.open(path, os.O_RDONLY)
    before = len(os.listdir("/proc/self/fd"))
    memory = map_file(descriptor, 4096, 5000, flags, protection)
    assert len(os.listdir("/proc/self/fd")) == before, "no descriptor of its own"
    os.close(descriptor)
    assert memory.readonly and memory == DATA[4096:9096]
    array = np.frombuffer(memory, dtype=np.uint8)[100:]
    del memory
    gc.collect()
    assert array.tobytes() == DATA[4196:9096] and mappings_of(path) == 1
    del array
    assert mappings_of(path) == 0


@pytest.mark.parametrize(("offset", "nbytes"), [(0, len(DATA) + 1), (4096, len(DATA)), (0, 0), (100, 10)])
def test_nothing_beyond_the_end_is_mapped(tmp_path: Path, offset: int, nbytes: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    with path.open("rb") as file, pytest.raises(OSError, match=r"shorter|Invalid") as caught:
        map_file(file.fileno(), offset, nbytes, mmap.MAP_SHARED, mmap.PROT_READ)
    assert caught.value.errno == errno.EINVAL and mappings_of(path) == 0
