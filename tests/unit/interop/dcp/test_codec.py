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

from deeppart.errors import DeeppartError, FormatError, NewerFormatError
from deeppart.interop import load
from deeppart.interop.dcp import BalancedSavePlanner, TensorCodecExtension, extension_registry
from deeppart.interop.dcp.codec_stream import EncodingStream, decode_stream, find_tensor
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
            assert decode_stream(io.BytesIO(encoded(pieces)).read, _MOST, "here") == data


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "uint16", "complex64", "float8_e5m2"])
def test_a_tensor_is_found_by_its_head(name: str) -> None:
    tensor = tensor_of(TORCH_DTYPES[name], 80_000)
    data = saved(tensor)
    start, dtype = find_tensor(data[: 64 << 10])
    assert data[start:].startswith(tensor.view(torch.uint8).numpy().tobytes())
    assert dtype == name or name.startswith("float8")


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
        with pytest.raises(FormatError):
            decode_stream(io.BytesIO(data).read, _MOST, "here")
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


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
