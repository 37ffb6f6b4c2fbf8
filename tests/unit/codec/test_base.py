"""What every codec promises: its id, chunks that come back unchanged, and no state."""

from __future__ import annotations

import numpy as np
import pytest

from deeppart.codec import CODECS, ROOM_BYTES, Codec, codec_by_id
from deeppart.errors import CorruptFileError, NewerFormatError

RANDOM = np.random.default_rng(0)
CHUNKS = {
    "one byte": b"x",
    "zeros": bytes(200_000),
    "noise": RANDOM.integers(0, 256, 200_001, dtype=np.uint8).tobytes(),
    "floats": RANDOM.standard_normal(100_000).astype(np.float32).tobytes(),
}


@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.name)
@pytest.mark.parametrize("name", CHUNKS)
def test_what_is_encoded_comes_back_with_memory_of_the_callers_and_without(codec: Codec, name: str) -> None:
    """The memory is large enough, and what is encoded does not depend on it."""
    raw = CHUNKS[name]
    room = memoryview(bytearray(b"\xaa" * (len(raw) + ROOM_BYTES)))
    encoded = memoryview(bytes(codec.encode(memoryview(raw), room)))
    assert encoded == codec.encode(memoryview(raw)) and bytes(codec.decode(encoded, len(raw))) == raw
    into = memoryview(bytearray(len(raw)))
    assert bytes(codec.decode(encoded, len(raw), into)) == raw == bytes(into)
    for wrong_length in (len(raw) - 1, len(raw) + 1, 0, 2**60):
        for wrong_into in (None,) if wrong_length == 2**60 else (None, memoryview(bytearray(wrong_length))):
            with pytest.raises(CorruptFileError):
                codec.decode(encoded, wrong_length, wrong_into)


def test_ids_are_part_of_the_format() -> None:
    assert {codec_id: codec.name for codec_id, codec in CODECS.items()} == {0: "raw", 1: "zstd", 2: "tensor"}


def test_unknown_id_is_from_a_newer_version() -> None:
    with pytest.raises(NewerFormatError, match=r"codec 3[\s\S]*chunk 5"):
        codec_by_id(3, where="chunk 5")
