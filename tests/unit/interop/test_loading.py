"""Foreign checkpoints are recognised by what is there, whatever they are called."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest
import torch
import torch.distributed.checkpoint as dcp

import deeppart
from deeppart.errors import CorruptFileError, RestoreError, StructureMismatchError
from deeppart.interop import load
from deeppart.interop.formats import recognize
from deeppart.interop.safetensors import encode_header
from deeppart.testing.states import difference

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def safetensors(path: Path) -> Path:
    path.write_bytes(encode_header([("a", "float32", (2,), 8)], {})[0] + torch.ones(2).numpy().tobytes())
    return path


def test_each_kind_by_any_name(tmp_path: Path) -> None:
    state = {"a": torch.ones(2)}
    torch.save(state, tmp_path / "pytorch_model.bin")
    torch.save(state, tmp_path / "old", _use_new_zipfile_serialization=False)
    dcp.save(state, checkpoint_id=tmp_path / "dcp")
    safetensors(tmp_path / "weights")
    with h5py.File(tmp_path / "archive", "w") as file:
        file["a"] = state["a"].numpy()
    (tmp_path / "hf").mkdir()
    safetensors(tmp_path / "hf" / "model.safetensors")
    (tmp_path / "link").symlink_to("hf")
    kinds = {"pytorch_model.bin": "torch", "old": "torch", "dcp": "dcp", "weights": "safetensors", "hf": "safetensors"}
    kinds["archive"] = "hdf5"
    for name, kind in (kinds | {"link": "safetensors"}).items():
        assert recognize(tmp_path / name) == kind and difference(state, load(tmp_path / name)) is None
        assert load(tmp_path / name, "a").keys() == {"a"}
        with pytest.raises(StructureMismatchError):
            load(tmp_path / name, "b")


def test_anything_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "empty").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "__0_0.distcp").write_bytes(b"PK")
    for name in ("text", "empty", "folder", "none", "__0_0.distcp"):
        with pytest.raises(RestoreError):
            load(tmp_path / name)
    with pytest.raises(CorruptFileError, match="is no file"):
        load("/dev/zero")


def test_a_checkpoint_of_ours_is_named_with_what_to_do(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path / "ckpt") as ck:
        ck.checkpoint({"a": torch.ones(2)}, step=3).wait()
    (step,) = (tmp_path / "ckpt").glob("step-*")
    for path in (tmp_path / "ckpt", step):
        with pytest.raises(RestoreError, match="a checkpoint directory of deeppart already") as caught:
            load(path)
        assert "`deeppart export`" in str(caught.value) and "deeppart.load" in str(caught.value)
