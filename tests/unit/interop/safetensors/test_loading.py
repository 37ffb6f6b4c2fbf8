"""safetensors that its own library has written, and directories as Hugging Face has them."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from deeppart.errors import CorruptFileError, DeeppartError, RestoreError, StructureMismatchError
from deeppart.interop.safetensors import NAMES, load
from deeppart.testing.states import difference
from tests.unit.interop.making import bits

library = pytest.importorskip("safetensors.torch", reason="safetensors is not installed: pip install safetensors")


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_every_bit_of_every_dtype(tmp_path: Path) -> None:
    state = {name: bits(name) for name in NAMES}
    state |= {"scalar": torch.tensor(3), "empty": torch.zeros(0, 3), "größe": torch.ones(2)}
    library.save_file(state, tmp_path / "x.safetensors", {"format": "pt"})
    assert difference(state, load(tmp_path / "x.safetensors"), ordered=False) is None


def model(tmp_path: Path, **weights: str) -> dict[str, torch.Tensor]:
    """Two shards, and the index of them."""
    state = {name: torch.full((3,), float(number)) for number, name in enumerate(("a", "b", "c"))}
    library.save_file({"a": state["a"]}, tmp_path / "model-1.safetensors")
    library.save_file({"b": state["b"], "c": state["c"]}, tmp_path / "model-2.safetensors")
    placed = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-2.safetensors"} | weights
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return state


def test_a_directory_with_an_index(tmp_path: Path) -> None:
    state = model(tmp_path)
    library.save_file({"stray": torch.ones(1)}, tmp_path / "other.safetensors")
    assert difference(state, load(tmp_path), ordered=False) is None
    assert difference(state, load(tmp_path / "model.safetensors.index.json"), ordered=False) is None
    assert difference({"b": state["b"]}, load(tmp_path, "b")) is None
    with pytest.raises(StructureMismatchError, match="matches the keys"):
        load(tmp_path, ["d*"])


def test_a_directory_without_one(tmp_path: Path) -> None:
    state = model(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert difference(state, load(tmp_path), ordered=False) is None
    library.save_file({"a": torch.ones(1)}, tmp_path / "model-3.safetensors")
    with pytest.raises(CorruptFileError, match="two files hold a tensor of one name"):
        load(tmp_path)


@pytest.mark.parametrize(
    "name", ["../model-1.safetensors", "/etc/passwd", "sub/model-1.safetensors", "", 5, None, "x\0.safetensors"]
)
def test_an_index_leads_nowhere_else(tmp_path: Path, name: Any) -> None:
    (tmp_path / "in").mkdir()
    model(tmp_path)
    model(tmp_path / "in", a=name)
    with pytest.raises(CorruptFileError, match="leads out of its directory"):
        load(tmp_path / "in")


def test_an_index_of_another_model(tmp_path: Path) -> None:
    model(tmp_path, d="model-1.safetensors")
    with pytest.raises(CorruptFileError, match="not in the file that the index names"):
        load(tmp_path)
    for text in ("{", "[]", '{"weight_map": 5}', "[" * 100_000):
        (tmp_path / "model.safetensors.index.json").write_text(text)
        with pytest.raises(CorruptFileError):
            load(tmp_path)


def test_names_that_share_a_tensor_are_tied(tmp_path: Path) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(2, 2, bias=False)
            self.b = torch.nn.Linear(2, 2, bias=False)
            self.b.weight = self.a.weight

    library.save_model(Tied(), str(tmp_path / "x.safetensors"))
    found = load(tmp_path / "x.safetensors")
    assert found.keys() == {"a.weight", "b.weight"} and found["a.weight"] is found["b.weight"]


def test_files_that_are_cut_off_or_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    library.save_file({"a": torch.arange(50.0)}, path)
    sound = path.read_bytes()
    for length in (0, 4, 8, 20, len(sound) - 1):
        path.write_bytes(sound[:length])
        with pytest.raises(CorruptFileError):
            load(path)
    path.write_bytes(sound + b"x")
    with pytest.raises(CorruptFileError):
        load(path)
    for place in range(80):  # the header alone: safetensors has no digests
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 4]) + sound[place + 1 :])
        with contextlib.suppress(DeeppartError):
            load(path)


def test_a_tensor_larger_than_all_memory(tmp_path: Path) -> None:
    """A file with a hole takes no space, and says it has 8 TB."""
    header = json.dumps({"a": {"dtype": "U8", "shape": [1 << 43], "data_offsets": [0, 1 << 43]}}).encode()
    with open(tmp_path / "x.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
    try:
        os.truncate(tmp_path / "x.safetensors", 8 + len(header) + (1 << 43))
    except OSError:
        pytest.skip("this file system has no files of 8 TB")
    with pytest.raises(RestoreError, match="not enough memory"):
        load(tmp_path / "x.safetensors")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="there are no safetensors here"):
        load(tmp_path)
    with pytest.raises(RestoreError, match="no such checkpoint"):
        load(tmp_path / "none.safetensors")
    with pytest.raises(RestoreError):
        load(tmp_path / "none.safetensors.index.json")


def test_what_wrote_a_file_is_no_name_of_a_tensor(tmp_path: Path) -> None:
    save_file({"pt": torch.ones(2)}, tmp_path / "x.safetensors", metadata={"format": "pt"})
    assert load(tmp_path / "x.safetensors").keys() == {"pt"}


def test_an_index_of_names_that_no_file_can_have(tmp_path: Path) -> None:
    for name in ("\ud800.safetensors", "a\0.safetensors", "../x.safetensors"):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(CorruptFileError, match="leads out of its directory"):
            load(tmp_path)
