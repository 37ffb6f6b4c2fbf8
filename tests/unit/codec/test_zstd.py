"""A chunk as one Zstandard frame: what is not exactly one frame of the right length is refused."""

from __future__ import annotations

import tracemalloc

import pytest
import zstandard

from deeppart.codec import ZstdCodec
from deeppart.errors import CorruptFileError

ZEROS = bytes(200_000)


# --- what zstd must refuse -------------------------------------------------------------------------------------------


def test_bomb_is_refused_before_memory_is_taken() -> None:
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(64 * 1024**2))
    lying = bytearray(zstandard.ZstdCompressor(level=1).compress(bytes(1024**2)))
    assert zstandard.get_frame_parameters(bytes(lying)).content_size == 1024**2
    lying[6:10] = (4096).to_bytes(4, "little")  # content size, behind magic, descriptor and window
    assert zstandard.get_frame_parameters(bytes(lying)).content_size == 4096
    for encoded in (bomb, bytes(lying)):
        tracemalloc.start()
        with pytest.raises(CorruptFileError):
            ZstdCodec().decode(memoryview(encoded), 4096)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 512 * 1024


def test_frame_without_content_size_is_refused() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(ZEROS)
    with pytest.raises(CorruptFileError, match="without content size"):
        ZstdCodec().decode(memoryview(frame), len(ZEROS))


FRAME = zstandard.ZstdCompressor().compress(b"abcd" * 100)
SKIPPABLE = bytes.fromhex("502a4d18") + (4).to_bytes(4, "little") + b"abcd"


@pytest.mark.parametrize(
    ("encoded", "raw_length"),
    [
        (b"", 0),
        (b"abc", 3),
        (b"not a zstd frame", 400),
        (FRAME[:-1], 400),
        (FRAME + b"x", 400),
        (FRAME + FRAME, 400),
        (FRAME + FRAME, 800),
        (SKIPPABLE, 4),
        (SKIPPABLE + FRAME, 4),
        (SKIPPABLE + FRAME, 400),
    ],
)
def test_not_exactly_one_frame_is_refused(encoded: bytes, raw_length: int) -> None:
    for into in (None, memoryview(bytearray(raw_length))):
        with pytest.raises(CorruptFileError):
            ZstdCodec().decode(memoryview(encoded), raw_length, into)
