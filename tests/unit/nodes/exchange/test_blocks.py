"""Blocks of files: the same bytes from a disk and from memory, and an error where the file ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deeppart.errors import CorruptFileError, StorageError
from deeppart.nodes.exchange.memory import Blocks
from deeppart.storage.mapped import lies_in_memory

CONTENT = bytes(range(256)) * 64


@pytest.fixture(params=["disk", "memory"])
def path(request: pytest.FixtureRequest, tmp_path: Path, memory: Path) -> str:
    directory = memory if request.param == "memory" else tmp_path
    if request.param == "memory" and not lies_in_memory(str(directory)):
        pytest.skip("no tmpfs")
    (directory / "part").write_bytes(CONTENT)
    return str(directory / "part")


def test_every_block_has_the_bytes_of_the_file(path: str) -> None:
    with Blocks(path) as blocks:
        for offset, length in ((0, 4096), (1, 100), (4095, 5000), (len(CONTENT) - 1, 1), (0, len(CONTENT)), (9, 0)):
            room = np.zeros(len(CONTENT), dtype=np.uint8)
            assert blocks.get(offset, length, room).tobytes() == CONTENT[offset : offset + length]


def test_what_was_given_out_stays_when_the_file_is_closed(path: str) -> None:
    with Blocks(path) as blocks:
        block = blocks.get(4096, 4096, np.zeros(4096, dtype=np.uint8))
    blocks.close()  # a second time does nothing
    assert block.tobytes() == CONTENT[4096:8192]


def test_a_file_that_ends_before_is_an_error(path: str) -> None:
    with Blocks(path) as blocks, pytest.raises(CorruptFileError):
        blocks.get(len(CONTENT) - 10, 11, np.zeros(11, dtype=np.uint8))


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        Blocks(str(tmp_path / "nowhere"))
    with pytest.raises(CorruptFileError):
        Blocks(str(tmp_path))


def test_a_file_in_memory_is_not_copied(memory: Path) -> None:
    if not lies_in_memory(str(memory)):
        pytest.skip("no tmpfs")
    (memory / "part").write_bytes(CONTENT)
    room = np.zeros(4096, dtype=np.uint8)
    with Blocks(str(memory / "part")) as blocks:
        block = blocks.get(0, 4096, room)
    assert not np.shares_memory(block, room) and not room.any()
