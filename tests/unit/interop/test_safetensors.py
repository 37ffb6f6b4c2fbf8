"""safetensors: what its own library has written, what is exported as read by it, and what a header may not say."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deeppart.errors import (
    CorruptFileError,
    DeeppartError,
    StateError,
    StructureMismatchError,
    UnsupportedLeafError,
)
from deeppart.extension.export import export
from deeppart.interop import load
from deeppart.interop.safetensors import NAMES, SafetensorsWriter, decode_header
from tests.states import difference
from tests.tensor_kinds import coo
from tests.unit.interop.making import bits, saved, training

library = pytest.importorskip("safetensors.torch", reason="safetensors is not installed: pip install safetensors")


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_every_bit_of_every_dtype_is_read_as_it_is_written(tmp_path: Path) -> None:
    state = {name: bits(name) for name in NAMES}
    state |= {"scalar": torch.tensor(3), "empty": torch.zeros(0, 3), "größe": torch.ones(2)}
    library.save_file(state, tmp_path / "theirs.safetensors", {"format": "pt"})
    assert difference(state, load(tmp_path / "theirs.safetensors"), ordered=False) is None
    export(saved(tmp_path / "ckpt", state), tmp_path / "ours.safetensors", SafetensorsWriter())
    assert difference(state, library.load_file(tmp_path / "ours.safetensors"), ordered=False) is None


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


def test_files_that_are_cut_off_or_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    library.save_file({"a": torch.arange(50.0)}, path)
    sound = path.read_bytes()
    for length in (0, 4, 8, 20, len(sound) - 1):
        path.write_bytes(sound[:length])
        with pytest.raises(CorruptFileError):
            load(path, form="safetensors")
    path.write_bytes(sound + b"x")
    with pytest.raises(CorruptFileError):
        load(path)
    for place in range(80):  # the header alone: safetensors has no digests
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 4]) + sound[place + 1 :])
        with contextlib.suppress(DeeppartError):
            load(path, form="safetensors")


# --- headers ---


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def decoded(document: Any, payload: int = 8) -> Any:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    return decode_header(data, payload, "here")


@pytest.mark.parametrize(
    ("document", "payload"),
    [
        ({"a": F32}, 12),  # bytes that are nobody's
        ({"a": F32 | {"data_offsets": [4, 12]}}, 8),
        ({"a": F32, "b": F32}, 16),  # that are two's
        ({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}, 12),
        ({"a": F32 | {"data_offsets": [0, 1 << 40], "shape": [1 << 38]}}, 8),  # beyond the file
        ({"a": F32 | {"data_offsets": [8, 0]}}, 8),
        ({"a": F32 | {"data_offsets": [-8, 0]}}, 8),
        ({"a": F32 | {"data_offsets": [0]}}, 8),
        ({"a": F32 | {"data_offsets": [0.0, 8.0]}}, 8),
        ({"a": F32 | {"shape": [3]}}, 8),
        ({"a": F32 | {"shape": [True, 2]}}, 8),
        ({"a": F32 | {"shape": [-1, -2]}}, 8),
        ({"a": F32 | {"shape": [1] * 70 + [2]}}, 8),
        ({"a": F32 | {"shape": 2}}, 8),
        ({"a": F32 | {"dtype": "F33"}}, 8),
        ({"a": F32 | {"dtype": ["F32"]}}, 8),
        ({"a": F32 | {"dtype": "F4", "shape": [15], "data_offsets": [0, 8]}}, 8),
        ({"a": F32 | {"more": 1}}, 8),
        ({"a": None}, 8),
        ({"a": F32, "__metadata__": {"k": 5}}, 8),
        ({"a": F32, "__metadata__": []}, 8),
        (
            b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
            8,
        ),
        (b'{"a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}}', 8),
        (b'[{"a":1}]', 0),
        (b" {}", 0),
        (b"{" * 100_000, 0),
        (b'{"a":' + b"[" * 100_000, 0),
        (b"\xff\xfe", 0),
        (b'{"a":1e999}', 0),
        (b"", 0),
    ],
)
def test_damage(document: Any, payload: int) -> None:
    with pytest.raises(CorruptFileError):
        decoded(document, payload)


# --- what is exported ---


def test_what_people_save(tmp_path: Path) -> None:
    state = training()
    out = tmp_path / "x.safetensors"
    done = export(saved(tmp_path / "ckpt", state), out, SafetensorsWriter())
    found = library.load_file(out)
    assert difference(state["model"]["0.weight"], found["model.0.weight"]) is None
    moments = state["optimizer"]["state"][0]["exp_avg"]
    assert difference(moments, found["optimizer.state.0.exp_avg"]) is None
    for name in ("turned", "rows", "large", "nan", "scalar", "empty", "flags"):
        assert difference(state[name].contiguous(), found[name]) is None, name
    assert ("tied" in found) != ("weight" in found) and done.form == "safetensors" and done.files == 1
    assert any("small values are in the metadata" in remark for remark in done.remarks)
    ours = load(out)
    assert ours["weight"] is ours["tied"] and ours["step"] == 1 << 100 and ours["name"] == "größe"
    assert (ours["betas.0"], str(ours["betas.1"])) == (0.9, "-0.0")


def test_a_directory_as_hugging_face_reads_it(tmp_path: Path) -> None:
    state: dict[str, Any] = {
        "model": {f"l{n}": torch.full((100,), float(n)) for n in range(5)} | {"n": 3},
        "other": torch.ones(2),
    }
    root = saved(tmp_path / "ckpt", state)
    done = export(root, tmp_path / "hf", SafetensorsWriter(1000), inner="model")
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2000 and done.files == 4  # with the index
    names = {f"model-{n:05d}-of-00003.safetensors" for n in (1, 2, 3)}
    assert {path.name for path in (tmp_path / "hf").iterdir()} == names | {"model.safetensors.index.json"}
    whole: dict[str, torch.Tensor] = {}
    for name in sorted(names):
        part = library.load_file(tmp_path / "hf" / name)
        assert {key for key, file in index["weight_map"].items() if file == name} == part.keys()
        assert (tmp_path / "hf" / name).stat().st_size < 1000 + 1000
        whole |= part
    assert difference({f"l{n}": state["model"][f"l{n}"] for n in range(5)}, whole, ordered=False) is None
    assert load(tmp_path / "hf")["n"] == 3
    export(root, tmp_path / "hf", SafetensorsWriter(1 << 30), inner="model", overwrite=True)
    assert [path.name for path in (tmp_path / "hf").iterdir()] == ["model.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt", "hf"]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("item", "says"),
    [
        (torch.ones(2, dtype=torch.complex128), "support the dtype of a leaf"),
        (np.array(["a", "b"]), "no dtype"),
        (np.array([1.5], dtype="g"), "no dtype"),
        (coo(), "support sparse_coo tensors"),
    ],
)
def test_what_it_cannot_hold_is_named(tmp_path: Path, item: Any, says: str) -> None:
    root = saved(tmp_path / "ckpt", {"good": torch.ones(2), "deep": {"bad": item}})
    with pytest.raises((UnsupportedLeafError, StateError), match=says) as caught:
        export(root, tmp_path / "x.safetensors", SafetensorsWriter())
    assert "deep/bad" in str(caught.value) and not list(tmp_path.glob("*x.safetensors*"))
    assert not list(tmp_path.glob(".*"))
    export(root, tmp_path / "x.safetensors", SafetensorsWriter(), keys=["good"])
    assert library.load_file(tmp_path / "x.safetensors").keys() == {"good"}


@pytest.mark.parametrize(
    "state",
    [
        {"a.b": torch.ones(1), "a": {"b": torch.ones(2)}},
        {"a.b": 5, "a": {"b": torch.ones(2)}},
        {0: torch.ones(1), "0": torch.ones(1)},
        {"__metadata__": torch.ones(1)},
        {"\ud800": torch.ones(1)},
    ],
)
def test_names_that_could_be_mistaken(tmp_path: Path, state: Any) -> None:
    root = saved(tmp_path / "ckpt", state)
    with pytest.raises(StateError, match="cannot have the name"):
        export(root, tmp_path / "x.safetensors", SafetensorsWriter())
