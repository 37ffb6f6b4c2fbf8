"""Damaged parity files: what storage does to them never passes for parity."""

from __future__ import annotations

import numpy as np
import pytest

from deeppart.errors import CorruptFileError
from tests.unit.part.parity_files import GOLDEN, INDEX_OFFSET, blocks_of, forged, opened, refused


@pytest.mark.parametrize("mask", [0xFF, 0x01, 0x80])
def test_every_flipped_byte_is_found(mask: int) -> None:
    damaged = bytearray(GOLDEN)
    for i in range(len(damaged)):
        damaged[i] ^= mask
        assert type(refused(damaged)) is CorruptFileError, i
        damaged[i] ^= mask
    opened(damaged).verify()


def test_a_flipped_byte_of_the_payload_costs_its_block_and_no_other() -> None:
    """A rebuild uses the good blocks of a file with bad ones."""
    damaged, sound = bytearray(GOLDEN), blocks_of(opened(GOLDEN))
    ends = np.cumsum([len(block or b"") for block in sound])
    for i in range(4096, INDEX_OFFSET, 7):
        damaged[i] ^= 1
        bad = int(np.searchsorted(ends, i - 4096, side="right"))
        expected = [None if number == bad else block for number, block in enumerate(sound)]
        reader = opened(damaged)
        assert blocks_of(reader) == expected, i
        row, index = divmod(bad, 2)
        start = 4096 + int(ends[bad]) - len(sound[bad] or b"")
        with pytest.raises(CorruptFileError) as caught:
            reader.verify()
        assert f"row {row}, block {index} (bytes {start} to {4096 + ends[bad]})" in str(caught.value)
        damaged[i] ^= 1


def test_every_truncation_is_found() -> None:
    for length in range(len(GOLDEN)):
        refused(GOLDEN[:length])
        # the file keeps its length but its end was never written
        refused(GOLDEN[:length].ljust(len(GOLDEN), b"\xee"))


def test_appended_bytes_are_found() -> None:
    for more in (b"\0", b"garbage", bytes(4096), GOLDEN[-64:], GOLDEN):
        refused(GOLDEN + more)


def test_mixed_files_are_found() -> None:
    """A header and payload of one file with index and footer of another: every digest by itself holds."""
    other = forged(head={"step": 1201})
    mixed = GOLDEN[:INDEX_OFFSET] + other[INDEX_OFFSET:]
    assert len(mixed) == len(other) == len(GOLDEN)
    assert "not this one's" in str(refused(mixed))
