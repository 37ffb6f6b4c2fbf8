"""Which codec a chunk gets: by the ``compression`` setting, its dtype, its contents, and what was measured."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from deeppart.codec import AutoCompression, Chooser, EncodedChunk, codec_by_id
from deeppart.codec.choose import LEAST_BYTES, LEAST_MEASUREMENTS, REGRET_CHECKPOINTS
from deeppart.errors import ConfigError

NOISE = np.random.default_rng(1).integers(0, 256, 200_000, dtype=np.uint8).tobytes()
FLOATS = np.random.default_rng(2).standard_normal(100_000).astype(np.float32).tobytes()
BFLOATS = np.frombuffer(FLOATS, np.uint16)[1::2].tobytes()
ZEROS = bytes(200_000)


def decoded(chunk: EncodedChunk, raw_length: int) -> bytes:
    return bytes(codec_by_id(chunk.codec_id).decode(memoryview(chunk.data), raw_length))


# --- choosing --------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "compression",
    ["", "gzip", "zstd:23", "zstd:٣", "raw", "auto"],  # the others: tests/unit/model/test_compression.py
)
def test_unknown_compression(compression: str) -> None:
    with pytest.raises(ConfigError, match=r'"auto", "none", "tensor", "zstd" or "zstd:LEVEL"') as caught:
        Chooser(compression)
    assert caught.value.found == repr(compression)


GB = 1e9


def known(bandwidth: float, *, speed: float = 2 * GB, fraction: float = 0.83, threads: int = 1) -> AutoCompression:
    """Knows float32 and the level "persistent"."""
    auto = AutoCompression(threads)
    auto.note_encoded("float32", 10**9, int(fraction * 10**9), 10**9 / speed)
    for _ in range(LEAST_MEASUREMENTS):
        auto.note_stored("persistent", 10**9, 10**9 / bandwidth)
    return auto


def encodes(auto: AutoCompression, level: str = "persistent", dtype: str = "float32") -> bool:
    chooser, lines = auto.chooser(level, [dtype])
    assert len(lines) == 1 and lines[0].startswith(f"{dtype}: ")
    assert lines[0].startswith(f"{dtype}: raw") != (chooser.codec_for(dtype) is not None)
    return chooser.codec_for(dtype) is not None


@pytest.mark.parametrize(
    ("bandwidth", "speed", "fraction", "threads", "wanted"),
    [
        (0.7 * GB, 2.0 * GB, 0.83, 1, True),  # the storage is what takes long: 17 % less of it
        (3.0 * GB, 2.0 * GB, 0.83, 1, False),  # the codec would be
        (3.0 * GB, 2.0 * GB, 0.83, 2, True),  # two of them would not
        (1.95 * GB, 2.0 * GB, 0.83, 1, False),  # a gain too small to count on
        (1.8 * GB, 2.0 * GB, 0.83, 1, True),
        (0.1 * GB, 2.0 * GB, 0.97, 1, False),  # hardly shrinks
        (0.1 * GB, 0.09 * GB, 0.3, 1, False),  # shrinks a lot, too slowly
    ],
)
def test_what_ends_soonest(bandwidth: float, speed: float, fraction: float, threads: int, wanted: bool) -> None:
    assert encodes(known(bandwidth, speed=speed, fraction=fraction, threads=threads)) is wanted


def test_without_an_idle_processor_encoding_and_writing_take_turns() -> None:
    """2 GB/s and 0.83: worth it overlapped at 1.5 GB/s, in turns only where writing takes several times as long."""
    for bandwidth, overlapped, in_turn in ((1.5, True, False), (0.4, True, False), (0.1, True, True)):
        for spare, wanted in ((True, overlapped), (False, in_turn)):
            auto = AutoCompression(1, spare=spare)
            auto.note_encoded("float32", 10**9, 830_000_000, 0.5)
            for _ in range(LEAST_MEASUREMENTS):
                auto.note_stored("persistent", 10**9, 1 / bandwidth)
            assert encodes(auto) is wanted
            assert ("no idle processor" in auto.chooser("persistent", ["float32"])[1][0]) is not spare


def test_nothing_is_encoded_at_a_level_or_of_a_dtype_that_is_not_known() -> None:
    auto = known(0.1 * GB)
    assert not encodes(auto, "local")
    assert not encodes(auto, dtype="bfloat16")
    assert auto.unknown(["float32", "bfloat16", "int64", "bfloat16"]) == ["bfloat16", "int64"]
    assert "not known yet" in auto.chooser("local", ["float32"])[1][0]
    for _ in range(4):
        auto.note_stored("local", LEAST_BYTES - 1, 1.0)  # too little to tell
    auto.note_stored("local", LEAST_BYTES, 1.0)  # once is not enough
    assert not encodes(auto, "local")
    auto.note_stored("local", LEAST_BYTES, 1.0)
    assert encodes(auto, "local")


def test_a_level_that_became_slower_is_left_raw_for_a_while() -> None:
    auto = known(0.5 * GB)
    for seconds in (3.0, 2.0):  # the first one took longer
        auto.note_completed("persistent", 10**9, seconds, encoded=False)
    auto.note_completed("persistent", 10**9, 2.05, encoded=True)  # within 5 %
    assert encodes(auto)
    auto.note_completed("persistent", 10**9, 2.3, encoded=True)
    for left in range(REGRET_CHECKPOINTS, 0, -1):
        assert not encodes(auto)
        assert f"for {left} checkpoints" in auto.chooser("persistent", ["float32"])[1][0]
        auto.note_completed("persistent", 10**9, 2.0, encoded=False)
    assert encodes(auto)
