"""The tensor codec under DCP's own writer and reader."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException, FileSystemReader, FileSystemWriter

from deeppart.errors import DeeppartError, NewerFormatError
from deeppart.interop.dcp import BalancedSavePlanner, load
from tests.unit.sharded_states import same

_extension = pytest.importorskip("torch.distributed.checkpoint._extension", reason="extensions came with torch 2.7")

from deeppart.interop.dcp import TensorCodecExtension, extension_registry  # noqa: E402

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


def test_smaller_than_dcps_own(tmp_path: Path) -> None:
    theirs = save(tmp_path / "theirs", [_extension.ZStandard()])
    assert save(tmp_path / "ours", [TensorCodecExtension()]) < 0.95 * theirs


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


def test_dcps_own_are_registered_too() -> None:
    (found,) = extension_registry().from_descriptor_list(["stream.zstd/1"])
    assert isinstance(found, _extension.ZStandard)
