"""What is exported as safetensors, read by its own library; what it cannot hold is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import CorruptFileError, StateError, StorageError, UnsupportedLeafError
from deeppart.interop.safetensors import NAMES, SafetensorsWriter, load
from deeppart.offline.export import export
from deeppart.testing.states import difference
from tests.tensor_kinds import coo, two
from tests.unit.cli_support import flip, part_path
from tests.unit.interop.making import bits, saved, training

library = pytest.importorskip("safetensors.torch", reason="safetensors is not installed: pip install safetensors")


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


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_every_bit_of_every_dtype(tmp_path: Path) -> None:
    state = {name: bits(name) for name in NAMES}
    export(saved(tmp_path / "ckpt", state), tmp_path / "x.safetensors", SafetensorsWriter())
    assert difference(state, library.load_file(tmp_path / "x.safetensors"), ordered=False) is None


def test_a_directory_as_hugging_face_reads_it(tmp_path: Path) -> None:
    state: dict[str, Any] = {
        "model": {f"l{n}": torch.full((100,), float(n)) for n in range(5)} | {"n": 3},
        "other": torch.ones(2),
    }
    root = saved(tmp_path / "ckpt", state)
    done = export(root, tmp_path / "hf", SafetensorsWriter(1000), inner="model")
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2000 and done.files == 3
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


def test_a_directory_with_other_things_in_it_is_not_replaced(tmp_path: Path) -> None:
    root = saved(tmp_path / "ckpt", {"a": torch.ones(3)})
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("precious")
    with pytest.raises(StorageError, match="holds more than an export makes"):
        export(root, tmp_path / "home", SafetensorsWriter(100), overwrite=True)
    assert (tmp_path / "home" / "thesis.tex").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt", "home"]


def test_arrays_are_tensors_there(tmp_path: Path) -> None:
    state: dict[str, Any] = {
        "big": np.arange(5, dtype=">i4"),
        "tiny": np.float32(2),
        "rows": np.arange(300_000.0).reshape(3, -1)[:, ::2],
    }
    done = export(saved(tmp_path / "ckpt", state), tmp_path / "x.safetensors", SafetensorsWriter())
    found = library.load_file(tmp_path / "x.safetensors")
    assert found["big"].tolist() == [0, 1, 2, 3, 4] and np.array_equal(found["rows"].numpy(), state["rows"])
    assert "numpy arrays are tensors there: big, rows" in done.remarks


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("item", "says"),
    [
        (torch.ones(2, dtype=torch.complex128), "no dtype for a leaf"),
        (np.array(["a", "b"]), "no dtype"),
        (np.array([1.5], dtype="g"), "no dtype"),
        (coo(), "no sparse_coo tensors"),
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


def test_the_components_of_subclasses(tmp_path: Path) -> None:
    export(saved(tmp_path / "ckpt", {"s": two()}), tmp_path / "x.safetensors", SafetensorsWriter())
    assert {"s.a", "s.b"} <= library.load_file(tmp_path / "x.safetensors").keys()


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


def test_damage_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    root = saved(tmp_path / "ckpt", {"a": torch.randn(2_000_000), "b": torch.randn(2_000_000)})
    path = part_path(root, 1)
    flip(path, path.stat().st_size // 2)
    for out, writer in ((tmp_path / "x.safetensors", SafetensorsWriter()), (tmp_path / "hf", SafetensorsWriter(1000))):
        with pytest.raises(CorruptFileError):
            export(root, out, writer)
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt"]


def test_per_rank_values_and_sharded_checkpoints_are_read_as_load_reads_them(tmp_path: Path) -> None:
    from tests.unit.cli_support import forge

    forge(tmp_path / "ckpt", 5)
    for rank in (0, 2):
        done = export(tmp_path / "ckpt", tmp_path / f"{rank}.safetensors", SafetensorsWriter(), rank=rank)
        found, expected = load(tmp_path / f"{rank}.safetensors"), deeppart.load(tmp_path / "ckpt", rank=rank)
        assert difference(torch.as_tensor(expected["rng"]), found["rng"]) is None and done.per_rank == 2
        assert found["position"] == expected["position"]
        assert difference(torch.as_tensor(expected["a"]), found["a"]) is None


def test_a_tensor_whose_name_is_the_number_of_the_step(tmp_path: Path) -> None:
    """The metadata says which step it was; and which names are other names of a tensor."""
    root = saved(tmp_path / "ckpt", {20: torch.ones(2)}, step=20)
    export(root, tmp_path / "x.safetensors", SafetensorsWriter())
    assert load(tmp_path / "x.safetensors").keys() == {"20"}


def test_containers_with_nothing_in_them_are_told(tmp_path: Path) -> None:
    root = saved(tmp_path / "ckpt", {"x": torch.ones(2), "hooks": {}, "deep": [{"none": ()}]})
    done = export(root, tmp_path / "x.safetensors", SafetensorsWriter())
    assert any("nothing in them" in line and "hooks" in line and "deep/0/none" in line for line in done.remarks)
