"""The stream of the tensor codec: every byte comes back, whatever was written, and damage is noticed."""

from __future__ import annotations

import io
import random
import struct
import tracemalloc
from typing import Any

import pytest
import torch
import xxhash
import zstandard

from deeppart.errors import CorruptFileError, FormatError
from deeppart.interop.dcp import codec_stream
from deeppart.interop.dcp.codec_stream import DecodingStream, EncodingStream, decoded
from deeppart.state.tree.leaves import TORCH_DTYPES

_MOST = 1 << 30


class Output(io.BytesIO):
    """Keeps its bytes when it is closed."""

    ended = False

    def close(self) -> None:
        self.ended = True


def encoded(pieces: list[Any]) -> bytes:
    output = Output()
    stream = EncodingStream(output)
    for piece in pieces:
        assert stream.write(piece) == memoryview(piece).nbytes
        stream.flush()
    stream.close()
    stream.close()
    assert output.ended
    return output.getvalue()


def saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def tensor_of(dtype: torch.dtype, nbytes: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    if dtype.is_floating_point and dtype.itemsize in (2, 4, 8):
        return (torch.randn(nbytes // dtype.itemsize, generator=generator) * 0.02).to(dtype)
    return torch.randint(0, 2, (nbytes,), generator=generator, dtype=torch.uint8).view(dtype)


def cut(data: bytes, draw: random.Random) -> list[bytes]:
    places = sorted(draw.sample(range(len(data) + 1), min(len(data), draw.choice([0, 3, 60]))))
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@pytest.mark.parametrize("name", sorted(TORCH_DTYPES))
def test_every_dtype_comes_back_however_it_was_written(name: str) -> None:
    draw = random.Random(name)
    for nbytes in (16, 1600, 3200, 70_000 // 16 * 16):
        data = saved(tensor_of(TORCH_DTYPES[name], nbytes))
        for pieces in ([data], cut(data, draw)):
            stream = encoded(pieces)
            assert decoded(stream, _MOST, "here") == data
            assert DecodingStream(io.BytesIO(stream)).read() == data


@pytest.mark.parametrize("frame_bytes", [64, 4096, 100_000])
def test_frames_of_other_lengths(frame_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of many frames, without their megabytes."""
    monkeypatch.setattr(codec_stream, "FRAME_BYTES", frame_bytes)
    data = saved(tensor_of(torch.float32, 300_000))
    for pieces in ([data], cut(data, random.Random(1))):
        assert decoded(encoded(pieces), _MOST, "here") == data


def test_frames_of_their_own_length() -> None:
    data = saved(tensor_of(torch.bfloat16, 9 << 20))
    stream = encoded([data])
    assert decoded(stream, _MOST, "here") == data and len(stream) < 0.7 * len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"PK\x03\x04",
        bytes(200_000),
        random.Random(1).randbytes(100_000),
        saved(tensor_of(torch.float32, 50_000))[:30_000],
        saved(tensor_of(torch.float32, 4000)) + b"tail" * 50_000,
        saved([torch.ones(9000), {"x": torch.ones(9000)}]),
        saved("text" * 100_000),
        b"junk" + saved(tensor_of(torch.float32, 50_000)),
    ],
    ids=lambda data: f"{len(data)} {data[:4]!r}",
)
def test_other_streams_come_back(data: bytes) -> None:
    for pieces in ([data], cut(data, random.Random(2)), [data[:700], data[700:]]):
        assert decoded(encoded(pieces), _MOST, "here") == data


def test_what_is_written_may_be_of_any_shape() -> None:
    tensor = torch.arange(6000, dtype=torch.int32).view(60, 100)
    assert decoded(encoded([tensor.numpy()]), _MOST, "here") == tensor.numpy().tobytes()


def test_reading_in_small_pieces() -> None:
    data = saved(tensor_of(torch.float32, 50_000))
    stream = DecodingStream(io.BytesIO(encoded([data])))
    found = b"".join(iter(lambda: stream.read(777), b""))
    assert found == data and stream.read(1) == b"" and stream.readable() and not stream.seekable()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("nbytes", "most", "more_bytes"), [(4, 1, 20), (400, 1, 20), (4000, 0.98, 0), (400_000, 0.93, 0)]
)
def test_smaller_than_zstd_alone(dtype: torch.dtype, nbytes: int, most: float, more_bytes: int) -> None:
    data = saved(tensor_of(dtype, nbytes))
    alone = len(zstandard.ZstdCompressor().compress(data))
    assert len(encoded([data])) < most * alone + more_bytes


def test_an_error_in_the_middle_leaves_no_end() -> None:
    """What is thrown away is not finished by the garbage collection."""
    output = Output()
    stream = EncodingStream(output)
    stream.write(saved(tensor_of(torch.float32, 50_000))[:20_000])
    del stream
    assert not output.ended
    with pytest.raises(CorruptFileError):
        decoded(output.getvalue(), _MOST, "here")


# --- damage -----------------------------------------------------------------------------------------------------------


def readers(data: bytes) -> list[Any]:
    return [lambda: decoded(data, _MOST, "here"), lambda: DecodingStream(io.BytesIO(data)).read()]


def test_every_bit_counts() -> None:
    stream = encoded([saved(tensor_of(torch.bfloat16, 3000))])
    for place in range(0, 8 * len(stream), 37):
        damaged = bytearray(stream)
        damaged[place // 8] ^= 1 << place % 8
        for read in readers(bytes(damaged)):
            with pytest.raises(FormatError):
                read()


def test_every_length_counts() -> None:
    stream = encoded([saved(tensor_of(torch.float32, 3000))])
    for length in [*range(60), *range(60, len(stream), 41), len(stream) - 1]:
        for read in readers(stream[:length]):
            with pytest.raises(CorruptFileError):
                read()
    for read in readers(stream + b"\0"):
        with pytest.raises(CorruptFileError, match="damaged"):
            read()


def frame(codec: int, raw_bytes: int, stored: bytes, stored_bytes: int | None = None, zeros: bytes = bytes(3)) -> bytes:
    """A frame whose digest is right, whatever it says."""
    head = struct.pack("<B3sII", codec, zeros, raw_bytes, len(stored) if stored_bytes is None else stored_bytes)
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head + stored)) + stored


def end(raw_bytes: int) -> bytes:
    last = struct.pack("<B3xQ", 255, raw_bytes)
    return last + struct.pack("<Q", xxhash.xxh3_64_intdigest(last))


ZEROS, MORE_ZEROS = (zstandard.ZstdCompressor().compress(bytes(nbytes << 20)) for nbytes in (1, 17))


@pytest.mark.parametrize(
    "data",
    [
        frame(0, 0xFFFFFFFF, b"x") + end(0xFFFFFFFF),
        frame(1, 0xFFFFFFFF, ZEROS) + end(0xFFFFFFFF),
        frame(1, 17 << 20, MORE_ZEROS) + end(17 << 20),
        frame(1, 1 << 19, ZEROS) + end(1 << 19),
        frame(1, 1 << 21, ZEROS) + end(1 << 21),
        frame(2, 1 << 24, b"\x05\x03\0\0" + bytes(24)) + end(1 << 24),
        frame(0, 1 << 24, b"x", 1 << 24) + end(1 << 24),
        frame(0, 4, b"12345") + end(5),
        frame(0, 0, b"") + end(0),
        frame(1, 1 << 20, ZEROS) + end(1 << 21),
        frame(1, 1 << 20, ZEROS) + end(0),
        frame(77, 4, b"1234") + end(4),
        frame(0, 4, b"1234", zeros=b"\0\1\0") + end(4),
        end(0) + end(0),
        end(1 << 60),
    ],
)
def test_claims_are_not_believed(data: bytes) -> None:
    tracemalloc.start()
    try:
        for read in readers(data):
            with pytest.raises(FormatError):
                read()
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_no_more_than_what_was_asked_for() -> None:
    stream = frame(1, 1 << 20, ZEROS) * 50 + end(50 << 20)
    with pytest.raises(CorruptFileError, match="damaged") as caught:
        decoded(stream, 3 << 20, "file, name")
    assert "at most 3145728 bytes" in str(caught.value) and "file, name" in str(caught.value)
    assert decoded(stream, 50 << 20, "here") == bytes(50 << 20)


def test_a_good_stream_of_single_frames() -> None:
    """That what is refused above is refused for what it claims."""
    assert decoded(frame(1, 1 << 20, ZEROS) + frame(0, 4, b"1234") + end((1 << 20) + 4), _MOST, "")[-5:] == b"\x001234"
