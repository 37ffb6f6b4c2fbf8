"""DCP checkpoints in one process: what torch has saved, and what is damaged or would execute something."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from zstandard import ZstdCompressor

from deeppart.errors import (
    CorruptFileError,
    DeeppartError,
    RestoreError,
    StorageError,
    UnsupportedLeafError,
)
from deeppart.interop import load
from deeppart.interop.dcp.loading import open_dcp
from tests.states import difference
from tests.unit.interop.making import training

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Anything:
    """Of no kind that ``weights_only`` knows."""


def test_all_that_torch_saves(tmp_path: Path) -> None:
    numbers: list[Any] = [torch.arange(3, dtype=torch.int16), {"x": torch.ones(1, dtype=torch.bfloat16)}, 5, "text"]
    state = training() | {"numbers": numbers, "pair": (1, 2.5), "raw": b"bytes", "nothing": None}
    state["model"] = dict(state["model"])
    dcp.save(state, checkpoint_id=tmp_path)
    assert difference(state, load(tmp_path), ordered=False) is None


def test_values_that_only_unpickling_could_make_are_named(tmp_path: Path) -> None:
    dcp.save({"model": {"w": torch.ones(2)}, "extra": Anything()}, checkpoint_id=tmp_path)
    with pytest.raises(UnsupportedLeafError, match="only unpickling could create") as caught:
        load(tmp_path)
    assert "extra" in str(caught.value) and "x1b" not in str(caught.value) and "\x1b" not in str(caught.value)
    assert caught.value.found == f"{__name__}.Anything"
    assert load(tmp_path, "model")["model"]["w"].tolist() == [1.0, 1.0]


def test_nothing_is_executed(tmp_path: Path) -> None:
    dcp.save({"model": {"w": torch.ones(2)}, "extra": 5}, checkpoint_id=tmp_path / "ckpt")
    metadata = pickle.loads((tmp_path / "ckpt" / ".metadata").read_bytes())
    info = metadata.storage_data[next(index for index in metadata.storage_data if index.fqn == "extra")]

    class Executes:
        def __reduce__(self) -> Any:
            return open, (str(tmp_path / "executed"), "w")

    file = tmp_path / "ckpt" / "hostile.distcp"
    torch.save(Executes(), file)
    info.relative_path, info.offset, info.length = file.name, 0, file.stat().st_size
    (tmp_path / "ckpt" / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(DeeppartError):
        load(tmp_path / "ckpt")
    assert not (tmp_path / "executed").exists()


def test_files_that_are_short_or_gone(tmp_path: Path) -> None:
    dcp.save({"w": torch.arange(1000.0), "v": 5}, checkpoint_id=tmp_path)
    (path,) = tmp_path.glob("*.distcp")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptFileError):
        load(tmp_path)
    path.unlink()
    with pytest.raises(StorageError):
        load(tmp_path)


def stored_as(directory: Path, shape: tuple[int, ...], data: bytes, transforms: Any = None) -> Path:
    """A checkpoint of a float32 tensor of a shape, and the bytes that are its only piece."""
    directory.mkdir()
    (directory / "f").write_bytes(data)
    begin, size = torch.Size([0] * len(shape)), torch.Size(shape)
    about = TensorStorageMetadata(TensorProperties(), size, [ChunkStorageMetadata(begin, size)])
    place = _StorageInfo("f", 0, len(data))
    if transforms:
        place.transform_descriptors = transforms
    (directory / ".metadata").write_bytes(
        pickle.dumps(Metadata({"x": about}, None, {MetadataIndex("x", begin, 0): place}))
    )
    return directory


def packed(tensor: torch.Tensor) -> bytes:
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    return buffer.getvalue()


def test_few_bytes_that_stand_for_many(tmp_path: Path) -> None:
    expanded = packed(torch.ones(1).expand(1 << 40))
    with pytest.raises(CorruptFileError, match="shorter than what it holds"):
        load(stored_as(tmp_path / "expanded", (1 << 40,), expanded))
    with pytest.raises(CorruptFileError):
        load(stored_as(tmp_path / "impossible", (1 << 61, 8), expanded))
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(packed(torch.zeros(4)))) as sound, zipfile.ZipFile(buffer, "w", 8) as made:
        for info in sound.infolist():
            made.writestr(info.filename, sound.read(info))
    with pytest.raises(CorruptFileError, match="no archive of") as caught:
        load(stored_as(tmp_path / "deflated", (4,), buffer.getvalue()))
    assert "compressed" in (caught.value.found or "")
    with pytest.raises((CorruptFileError, RestoreError)):  # what it takes to hold all of it is asked for at once
        load(stored_as(tmp_path / "encoded", (1 << 50,), bytes(5), ["stream.deeppart-tensor/1"]))
    with pytest.raises((CorruptFileError, RestoreError)):
        load(stored_as(tmp_path / "zstd", (1 << 50,), ZstdCompressor().compress(bytes(5)), ["stream.zstd/1"]))


# --- tensors in one piece, in rows, and cut in other ways ---


def in_pieces(directory: Path, whole: torch.Tensor, cuts: Sequence[tuple[slice, ...]], *, turned: bool = False) -> Path:
    """A directory as ranks of a job would have written it, each its piece."""
    directory.mkdir()
    chunks, places = [], {}
    for number, cut in enumerate(cuts):
        piece = whole[cut].clone().T.contiguous().T if turned else whole[cut].clone()
        buffer = io.BytesIO()
        torch.save(piece, buffer)
        name = f"__{number}_0.distcp"
        (directory / name).write_bytes(b"before" + buffer.getvalue() + b"after")
        offsets = torch.Size([each.start or 0 for each in cut])
        chunks.append(ChunkStorageMetadata(offsets, piece.size()))
        places[MetadataIndex("x", offsets, number)] = _StorageInfo(name, 6, len(buffer.getvalue()))
    about = TensorStorageMetadata(TensorProperties(dtype=whole.dtype), whole.size(), chunks)
    (directory / ".metadata").write_bytes(pickle.dumps(Metadata({"x": about}, {"x": ("x",)}, places)))
    return directory


ROWS = [(slice(4, 7), slice(0, 5)), (slice(0, 1), slice(0, 5)), (slice(1, 4), slice(0, 5))]
COLUMNS = [(slice(0, 7), slice(0, 2)), (slice(0, 7), slice(2, 5))]


@pytest.mark.parametrize("cuts", [ROWS, COLUMNS, [(slice(0, 7), slice(0, 5))]], ids=["rows", "columns", "whole"])
@pytest.mark.parametrize("turned", [False, True])
def test_pieces_are_put_together(tmp_path: Path, cuts: Any, turned: bool) -> None:
    whole = torch.arange(35, dtype=torch.int16).view(7, 5)
    path = in_pieces(tmp_path / "x", whole, cuts, turned=turned)
    assert difference({"x": whole}, load(path)) is None
    with ExitStack() as closing:
        found = open_dcp(path, closing)
        (source,) = found.sources.values()
        assert source.nbytes == 70 and found.files == len(cuts)
        buffer = bytearray(70)
        for start in range(0, 70, 9):
            source.read_into(start, memoryview(buffer)[start : start + 9])
        assert bytes(buffer) == whole.numpy().tobytes()


@pytest.mark.parametrize("cuts", [ROWS, COLUMNS], ids=["rows", "columns"])
def test_every_byte_of_a_tensor_has_a_checksum(tmp_path: Path, cuts: Any) -> None:
    whole = torch.arange(35_000, dtype=torch.int16).view(7, 5000)
    wide = [(rows, slice(columns.start * 1000, columns.stop * 1000)) for rows, columns in cuts]
    path = in_pieces(tmp_path / "x", whole, wide)
    file = path / "__1_0.distcp"
    sound, noticed = file.read_bytes(), 0
    for place in np.linspace(0, len(sound) - 1, 40, dtype=int).tolist():
        file.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        try:
            assert difference({"x": whole}, load(path)) is None, place
        except DeeppartError:
            noticed += 1
    assert noticed > 30
