"""DCP directories of which nothing is read at first: tensors in one piece, in rows, and cut in other ways."""

from __future__ import annotations

import io
import pickle
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

from deeppart.errors import CorruptFileError, DeeppartError
from deeppart.interop.dcp import load
from deeppart.interop.dcp.loading import open_dcp
from deeppart.testing.states import difference
from tests.unit.interop.making import training

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def opened(path: Path, keys: Any = None) -> Any:
    with ExitStack() as closing:
        return open_dcp(path, closing, keys).load()


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
    assert difference({"x": whole}, opened(path)) is None and difference({"x": whole}, load(path)) is None
    with ExitStack() as closing:
        found = open_dcp(path, closing)
        (source,) = found.sources.values()
        assert source.nbytes == 70 and found.files == len(cuts)
        buffer = bytearray(70)
        for start in range(0, 70, 9):
            source.read_into(start, memoryview(buffer)[start : start + 9])
        assert bytes(buffer) == whole.numpy().tobytes()


def test_as_load_gives_it(tmp_path: Path) -> None:
    dcp.save(training(), checkpoint_id=tmp_path)
    assert difference(load(tmp_path), opened(tmp_path)) is None
    assert difference(load(tmp_path, "model"), opened(tmp_path, "model")) is None


@pytest.mark.parametrize("cuts", [ROWS, COLUMNS], ids=["rows", "columns"])
def test_damaged_bytes(tmp_path: Path, cuts: Any) -> None:
    whole = torch.arange(35_000, dtype=torch.int16).view(7, 5000)
    wide = [(rows, slice(columns.start * 1000, columns.stop * 1000)) for rows, columns in cuts]
    path = in_pieces(tmp_path / "x", whole, wide)
    file = path / "__1_0.distcp"
    sound, noticed = file.read_bytes(), 0
    for place in np.linspace(0, len(sound) - 1, 40, dtype=int).tolist():
        file.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        try:
            assert difference({"x": whole}, opened(path)) is None, place
        except DeeppartError:
            noticed += 1
    assert noticed > 30


def test_a_piece_that_is_another_tensor(tmp_path: Path) -> None:
    whole = torch.arange(35, dtype=torch.int16).view(7, 5)
    path = in_pieces(tmp_path / "x", whole, ROWS)
    for other in (torch.ones(3, 5), torch.ones(5, 3, dtype=torch.int16), 5):
        buffer = io.BytesIO()
        torch.save(other, buffer)
        data = pickle.loads((path / ".metadata").read_bytes())
        for index in list(data.storage_data):
            if index.index == 2:
                data.storage_data[index] = _StorageInfo("other", 0, len(buffer.getvalue()))
        (path / "other").write_bytes(buffer.getvalue())
        (path / ".metadata").write_bytes(pickle.dumps(data))
        with pytest.raises(CorruptFileError, match="not what its metadata says"):
            opened(path)
