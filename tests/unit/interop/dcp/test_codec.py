"""The tensor codec: every byte of its stream comes back, damage is noticed; and DCP's own files through it."""

from __future__ import annotations

import io
import os
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
import xxhash
import zstandard
from torch.distributed.checkpoint import CheckpointException, FileSystemReader, FileSystemWriter

from deeppart.errors import CorruptFileError, DeeppartError, FormatError, NewerFormatError
from deeppart.interop.dcp import BalancedSavePlanner, TensorCodecExtension, extension_registry, load
from deeppart.interop.dcp.codec_stream import DecodingStream, EncodingStream, decoded
from deeppart.state.tensors.leaves import TORCH_DTYPES
from tests.unit.sharded_states import same

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


# --- the tensor in what torch.save writes ---


# --- under DCP's own writer and reader ---


_extension = pytest.importorskip("torch.distributed.checkpoint._extension", reason="extensions came with torch 2.7")
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


def state() -> dict[str, Any]:
    torch.manual_seed(5)
    return {
        "model": {"w": torch.randn(300, 200) * 0.02, "half": torch.randn(5000).bfloat16(), "n": torch.tensor(3)},
        "layers": {"0": torch.randn(70, 90).T, "1": {"empty": torch.zeros(0, 2), "mask": torch.rand(3000) > 0.5}},
        "tokens": torch.arange(4000),
        "text": "x" * 9000,
        "step": 5,
    }


def blank(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return torch.zeros(item.shape, dtype=item.dtype)
    if isinstance(item, dict):
        return {key: blank(each) for key, each in item.items()}
    return None


def save(path: Path, extensions: list[Any], **options: Any) -> int:
    """Returns the bytes of the files."""
    writer = FileSystemWriter(path, _extensions=extensions, sync_files=False, **options)
    dcp.save(state(), storage_writer=writer, planner=BalancedSavePlanner())
    return sum(file.stat().st_size for file in path.glob("*.distcp"))


@pytest.mark.parametrize("options", [{}, {"thread_count": 3, "single_file_per_rank": False}])
def test_dcps_reader_and_ours_load_it(tmp_path: Path, options: dict[str, Any]) -> None:
    save(tmp_path, [TensorCodecExtension()], **options)
    found = blank(state())
    dcp.load(found, storage_reader=FileSystemReader(tmp_path, _extension_registry=extension_registry()))
    assert same(found, state())
    assert same(load(tmp_path), state())


def test_a_reader_that_does_not_know_it_names_it(tmp_path: Path) -> None:
    save(tmp_path, [TensorCodecExtension()])
    with pytest.raises(CheckpointException, match=r"stream\.deeppart-tensor"):
        dcp.load(blank(state()), checkpoint_id=tmp_path)


@pytest.mark.parametrize("ours_first", [False, True])
def test_beside_another_one(tmp_path: Path, ours_first: bool) -> None:
    """DCP writes through two extensions, and undoes them in the wrong order; ``load`` does not."""
    extensions = [_extension.ZStandard(), TensorCodecExtension()]
    save(tmp_path, extensions[::-1] if ours_first else extensions)
    assert same(load(tmp_path), state())


def test_damaged_files_end_in_errors(tmp_path: Path) -> None:
    save(tmp_path, [TensorCodecExtension()])
    (path,) = tmp_path.glob("*.distcp")
    sound = path.read_bytes()
    for place in np.linspace(0, len(sound) - 1, 25, dtype=int).tolist():
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 16]) + sound[place + 1 :])
        with pytest.raises(DeeppartError):
            load(tmp_path)
        with pytest.raises(CheckpointException, match="tensor codec is damaged"):
            dcp.load(
                blank(state()), storage_reader=FileSystemReader(tmp_path, _extension_registry=extension_registry())
            )
    os.truncate(path, len(sound) // 2)
    with pytest.raises(DeeppartError):
        load(tmp_path)


def test_versions() -> None:
    (found,) = extension_registry().from_descriptor_list([TensorCodecExtension().get_descriptor()])
    assert isinstance(found, TensorCodecExtension)
    with pytest.raises(NewerFormatError, match="newer tensor codec"):
        extension_registry().from_descriptor_list(["stream.deeppart-tensor/2"])
