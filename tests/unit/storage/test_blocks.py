"""Memory for direct writes: where it lies, and that it is its own."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from deeppart.storage.files import BLOCK_BYTES, DurableFile, block_memory
from tests.unit.smaps import smaps_bytes


@pytest.mark.parametrize("nbytes", [1, 4096, BLOCK_BYTES, BLOCK_BYTES + 1])
def test_it_is_aligned_zeroed_writable_and_as_long_as_asked(nbytes: int) -> None:
    blocks = [block_memory(nbytes) for _ in range(3)]
    gc.collect()
    for number, block in enumerate(blocks):
        found = np.frombuffer(block, dtype=np.uint8)
        assert len(found) == nbytes and found.ctypes.data % (2 << 20) == 0 and not found.any()
        found[:] = number + 1
    assert [set(block) for block in map(bytes, blocks)] == [{1}, {2}, {3}]


def test_it_lies_on_huge_pages_where_the_system_gives_them() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("no huge pages here")
    block = block_memory(BLOCK_BYTES)
    np.frombuffer(block, dtype=np.uint8)[:] = 1
    huge = smaps_bytes(int(np.frombuffer(block, dtype=np.uint8).ctypes.data), "AnonHugePages")
    if not huge:
        pytest.skip("the system has none left")
    assert huge >= BLOCK_BYTES


def test_a_file_written_from_it_around_the_page_cache_is_right(tmp_path: Path) -> None:
    data = np.random.default_rng(3).integers(0, 256, 2 * BLOCK_BYTES + 12_345, dtype=np.uint8).tobytes()
    file = DurableFile(tmp_path / "part", direct=True)
    for at in range(0, len(data), 1_000_003):
        file.write(data[at : at + 1_000_003])
    file.commit()
    assert (tmp_path / "part").read_bytes() == data and os.listdir(tmp_path) == ["part"]
