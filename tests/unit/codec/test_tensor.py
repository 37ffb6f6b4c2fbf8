"""The tensor codec: every dtype and every special value comes back bit for bit; what is not well-formed is refused."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppart.codec import PLANE_DTYPES, ROOM_BYTES, Chooser, TensorCodec, codec_by_id
from deeppart.codec.tensor import FOLDED_PLANE, LAYOUTS, RAW_PLANE, ZSTD_PLANE
from deeppart.errors import CorruptFileError
from deeppart.part import FileSource, PartReader
from deeppart.state.tensors.leaves import TORCH_DTYPES, LeafType
from tests.golden import make
from tests.sampling import examples

RANDOM = np.random.default_rng(7)
#: Tags that a chunk of a leaf can have.
TAGS = sorted(
    set(TORCH_DTYPES) | {LeafType("numpy", code, ()).tag for code in ("<u2", "<u4", "<u8", "<f2", "<c16", "|S3")}
)
UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}


def round_trip(raw: bytes, dtype: str) -> None:
    """Encode and decode, with memory of the caller's and without."""
    codec = TensorCodec(dtype)
    room = memoryview(bytearray(len(raw) + ROOM_BYTES))
    encoded = codec.encode(memoryview(raw), room)
    assert bytes(encoded) == bytes(codec.encode(memoryview(raw)))
    assert bytes(codec.decode(encoded, len(raw))) == raw
    into = memoryview(bytearray(b"\xa5" * len(raw)))
    assert bytes(codec.decode(encoded, len(raw), into)) == raw == bytes(into)


def methods(encoded: memoryview) -> list[int]:
    return [encoded[4 + 8 * plane] for plane in range(encoded[1])]


def ordinary(dtype: str, count: int) -> bytes:
    """Values as they occur: normals for floats, small numbers for integers, bytes for the rest."""
    normals = torch.from_numpy(RANDOM.standard_normal(count))
    kind = TORCH_DTYPES.get("float16" if dtype == "complex32" else dtype)
    if kind is None or dtype.startswith("float4"):
        return RANDOM.integers(0, 200, count * 8, dtype=np.uint8).tobytes()
    if kind.is_floating_point or kind.is_complex:
        return normals.to(kind).view(torch.uint8).numpy().tobytes()
    return (normals * 100).abs().to(torch.int64).to(kind).view(torch.uint8).numpy().tobytes()


# --- nothing is lost --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TAGS, ids=lambda tag: tag or "none")
@pytest.mark.parametrize("count", [1, 7, 5000])
def test_every_dtype(dtype: str, count: int) -> None:
    raw = ordinary(dtype, count)
    chunk = Chooser("tensor").encode_chunk(memoryview(raw), dtype)
    assert bytes(codec_by_id(chunk.codec_id).decode(memoryview(chunk.data), len(raw))) == raw
    assert len(chunk.data) <= len(raw)
    if count == 5000 and (dtype in PLANE_DTYPES or dtype.startswith("float8")):
        assert len(chunk.data) < 0.97 * len(raw)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int16", "uint16", "complex32"])
def test_every_value_of_two_bytes(dtype: str) -> None:
    values = np.arange(1 << 16, dtype=np.uint16)  # all NaNs, infinities, zeros, subnormals
    round_trip(values.tobytes(), dtype)
    round_trip(RANDOM.permutation(values).tobytes(), dtype)


def special_values(nbytes: int, exponent_bits: int) -> Iterator[int]:
    """Bit patterns: every exponent with mantissas of all zeros, all ones, one bit; both signs."""
    mantissa_bits = 8 * nbytes - 1 - exponent_bits
    mantissas = {0, 1, (1 << mantissa_bits) - 1, *(1 << bit for bit in range(mantissa_bits))}
    for exponent in range(1 << exponent_bits):
        for mantissa in mantissas:
            for sign in (0, 1):
                yield sign << (8 * nbytes - 1) | exponent << mantissa_bits | mantissa


@pytest.mark.parametrize(("dtype", "nbytes", "exponent_bits"), [("float32", 4, 8), ("float64", 8, 11)])
def test_every_exponent_with_special_mantissas(dtype: str, nbytes: int, exponent_bits: int) -> None:
    values = np.fromiter(special_values(nbytes, exponent_bits), UNSIGNED[nbytes])
    round_trip(values.tobytes(), dtype)
    round_trip(RANDOM.permutation(values).tobytes(), dtype)


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(sorted(PLANE_DTYPES)), st.binary(min_size=1, max_size=700), st.integers(1, 40))
def test_any_bytes(dtype: str, piece: bytes, times: int) -> None:
    round_trip(piece * times, dtype)


# --- what is refused --------------------------------------------------------------------------------------------------

RAW = ordinary("float32", 3000) + b"abc"
ENCODED = bytes(TensorCodec("float32").encode(memoryview(RAW)))


def refused(encoded: bytes, raw_length: int = len(RAW)) -> None:
    for into in (None, memoryview(bytearray(max(raw_length, 0)))):
        with pytest.raises(CorruptFileError):
            TensorCodec().decode(memoryview(encoded), raw_length, into)


def test_every_truncation_and_another_length() -> None:
    for length in range(0, len(ENCODED), 97):
        refused(ENCODED[:length])
    refused(ENCODED[:-1])
    refused(ENCODED + b"x")
    for raw_length in (0, len(RAW) - 1, len(RAW) + 1, len(RAW) - 4, len(RAW) + 4, 2 * len(RAW)):
        refused(ENCODED, raw_length)


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (0, b"\0"), (0, b"\x07"), (0, b"\xff"), (1, b"\2"), (1, b"\xff"), (2, b"\1"),
        (4, b"\1"), (4, b"\2"), (4, b"\4"), (20, b"\0"), (20, b"\2"), (20, b"\3"),
        (8, struct.pack("<I", 0)), (8, struct.pack("<I", 2**32 - 1)), (24, struct.pack("<I", 1)),
        (16, struct.pack("<I", 2999)), (24, struct.pack("<I", 0)),
    ],
)  # fmt: skip
def test_head(at: int, data: bytes) -> None:
    refused(ENCODED[:at] + data + ENCODED[at + len(data) :])


def test_a_frame_that_claims_more_is_refused_before_memory_is_taken() -> None:
    frame = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    head = struct.pack("<BBH", 4, 2, 0) + struct.pack("<B3xI", 0, 1000) + struct.pack("<B3xI", 1, len(frame))
    encoded = memoryview(head + bytes(1000) + frame)
    tracemalloc.start()
    with pytest.raises(CorruptFileError):
        TensorCodec().decode(encoded, 2000)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_golden_chunks_decode() -> None:
    with FileSource(make.LATER_FILES / "part-00001-of-00002.dpp") as source:
        reader = PartReader(source, where="golden")
        assert [bytes(reader.read_chunk(i)) for i in range(len(reader.chunks))] == [raw for _, raw in make.CHUNKS]
        heads = [source.read_at(int(offset), 64) for offset in reader.chunks["offset"]]
    assert {head[0] for head in heads} == set(LAYOUTS)
    assert {method for head in heads for method in methods(memoryview(head))} == {RAW_PLANE, ZSTD_PLANE, FOLDED_PLANE}
