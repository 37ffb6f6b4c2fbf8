"""What every codec promises: it can be given too little room for nothing, and it keeps no state."""

from __future__ import annotations

import numpy as np
import pytest

from deeppart.codec import CODECS, Codec
from deeppart.codec.base import ROOM_BYTES, EncodedChunk

RANDOM = np.random.default_rng(0)
CHUNKS = {
    "one byte": b"x",
    "zeros": bytes(10_000),
    "noise": RANDOM.integers(0, 256, 10_001, dtype=np.uint8).tobytes(),
    "floats": RANDOM.standard_normal(4_000).astype(np.float32).tobytes(),
}


@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.name)
@pytest.mark.parametrize("name", CHUNKS)
def test_room_is_enough_and_what_is_encoded_does_not_depend_on_it(codec: Codec, name: str) -> None:
    raw = CHUNKS[name]
    room = memoryview(bytearray(b"\xaa" * (len(raw) + ROOM_BYTES)))
    encoded = bytes(codec.encode(memoryview(raw), room))
    assert encoded == bytes(codec.encode(memoryview(raw))) and bytes(codec.decode(memoryview(encoded), len(raw))) == raw


@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.name)
def test_one_chunk_leaves_nothing_behind_for_the_next(codec: Codec) -> None:
    alone = {name: bytes(codec.encode(memoryview(raw))) for name, raw in CHUNKS.items()}
    for first, whole in CHUNKS.items():
        for name, raw in CHUNKS.items():
            codec.encode(memoryview(whole))
            assert bytes(codec.encode(memoryview(raw))) == alone[name]
            codec.decode(memoryview(alone[first]), len(whole))
            assert bytes(codec.decode(memoryview(alone[name]), len(raw))) == raw


def test_a_chunk_without_digests_says_so() -> None:
    chunk = EncodedChunk(0, b"bytes")
    assert (chunk.digest, chunk.raw_digest, chunk.strong_digest) == (None, None, None)
