"""Which codec a chunk gets: by the ``compression`` setting, its dtype, its contents, and what was measured."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from deeppart.codec import Chooser, EncodedChunk, codec_by_id

NOISE = np.random.default_rng(1).integers(0, 256, 200_000, dtype=np.uint8).tobytes()
FLOATS = np.random.default_rng(2).standard_normal(100_000).astype(np.float32).tobytes()
BFLOATS = np.frombuffer(FLOATS, np.uint16)[1::2].tobytes()
ZEROS = bytes(200_000)


def decoded(chunk: EncodedChunk, raw_length: int) -> bytes:
    return bytes(codec_by_id(chunk.codec_id).decode(memoryview(chunk.data), raw_length))


@pytest.mark.parametrize("compression", ["none", "tensor", "zstd", "zstd:1", "zstd:22", "zstd:-7"])
def test_chooser_round_trip_and_never_longer(compression: str) -> None:
    dtypes = "", "float32", "int64", "uint8", "float8_e4m3fn"
    for raw, dtype in product((b"x", ZEROS, NOISE, FLOATS, BFLOATS), dtypes):
        chunk = Chooser(compression).encode_chunk(memoryview(raw), dtype)
        assert decoded(chunk, len(raw)) == raw
        assert len(chunk.data) < len(raw) or (chunk.codec_id == 0 and len(chunk.data) == len(raw))


@pytest.mark.parametrize(
    ("compression", "raw", "dtype", "codec_id"),
    [
        ("none", ZEROS, "float32", 0),
        ("zstd", ZEROS, "float32", 1),
        ("zstd", NOISE, "float32", 0),  # does not shrink
        ("zstd", b"x", "", 0),
        ("zstd", FLOATS, "float32", 1),
        ("tensor", FLOATS, "float32", 2),
        ("tensor", BFLOATS, "bfloat16", 2),
        ("tensor", NOISE, "float32", 0),
        ("tensor", NOISE, "int64", 0),
        ("tensor", ZEROS, "int32", 2),
        ("tensor", ZEROS, "uint8", 1),  # one plane already
        ("tensor", ZEROS, "float8_e5m2", 1),
        ("tensor", ZEROS, "", 1),  # no numbers, or not in this machine's byte order
    ],
)
def test_choice(compression: str, raw: bytes, dtype: str, codec_id: int) -> None:
    assert Chooser(compression).encode_chunk(memoryview(raw), dtype).codec_id == codec_id


def test_level_reaches_zstd() -> None:
    text = b"".join(b"%d %d," % (i, i * i) for i in range(8_000))
    sizes = [len(Chooser(f"zstd:{level}").encode_chunk(memoryview(text)).data) for level in (-7, 1, 19)]
    assert sizes == sorted(sizes, reverse=True)
    level_3 = Chooser("zstd:3").encode_chunk(memoryview(text))
    assert Chooser("zstd").encode_chunk(memoryview(text)) == level_3
    assert Chooser("zstd:1").encode_chunk(memoryview(text)) != level_3
