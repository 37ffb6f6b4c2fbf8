"""Blocks of files, from a disk and from memory; and waiting for a bandwidth limit."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from deeppart.errors import CorruptFileError
from deeppart.nodes.exchange.memory import Blocks, paced
from deeppart.storage.mapped import lies_in_memory
from deeppart.storage.rate import RateLimit

CONTENT = bytes(range(256)) * 64


@pytest.fixture(params=["disk", "memory"])
def path(request: pytest.FixtureRequest, tmp_path: Path, memory: Path) -> str:
    directory = memory if request.param == "memory" else tmp_path
    if request.param == "memory" and not lies_in_memory(str(directory)):
        pytest.skip("no tmpfs")
    (directory / "part").write_bytes(CONTENT)
    return str(directory / "part")


def test_every_block_has_the_bytes_of_the_file(path: str) -> None:
    with Blocks(Path(path)) as blocks:
        for offset, length in ((0, 4096), (1, 100), (4095, 5000), (len(CONTENT) - 1, 1), (0, len(CONTENT)), (9, 0)):
            room = np.zeros(len(CONTENT), dtype=np.uint8)
            assert blocks.get(offset, length, room).tobytes() == CONTENT[offset : offset + length]


def test_what_was_given_out_stays_when_the_file_is_closed(path: str) -> None:
    with Blocks(Path(path)) as blocks:
        block = blocks.get(4096, 4096, np.zeros(4096, dtype=np.uint8))
    blocks.close()  # a second time does nothing
    assert block.tobytes() == CONTENT[4096:8192]


def test_a_file_that_ends_before_is_an_error(path: str) -> None:
    with Blocks(Path(path)) as blocks, pytest.raises(CorruptFileError):
        blocks.get(len(CONTENT) - 10, 11, np.zeros(11, dtype=np.uint8))


def test_it_waits_for_the_limit_and_says_at_the_end_that_it_got_further() -> None:
    limit = RateLimit(1_000_000.0, burst_s=0.0)
    limit.take(200_000)  # what follows has to wait 0.2 s
    began = time.monotonic()
    moved = list(paced(limit, 1000))
    assert time.monotonic() - began >= 0.15
    assert moved[-1] is True and len(moved) > 1 and not any(moved[:-1])
