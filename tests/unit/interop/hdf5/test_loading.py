"""HDF5 files: what `deeppart export` has written comes back exactly; files of others as nested groups of data sets."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import types
from collections import Counter, OrderedDict, defaultdict, namedtuple
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import CorruptFileError, StructureMismatchError
from deeppart.interop.hdf5 import load
from deeppart.interop.importing import import_checkpoint
from deeppart.offline.export import export
from deeppart.offline.export.hdf5 import Filter, Hdf5Writer
from deeppart.state.tree.leaves import TORCH_DTYPES
from deeppart.testing.states import difference
from tests.features import script_values
from tests.features.script_files import bits
from tests.tensor_kinds import coo, quantized
from tests.unit.interop.hdf5.making import W, made
from tests.unit.offline.export.reading import written

Row = namedtuple("Row", "z a")


@dataclasses.dataclass
class Plan:
    steps: int
    weight: Any


def trained() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    octets = torch.arange(1 << 14, dtype=torch.int32).to(torch.uint16).view(torch.uint8)
    weight = torch.nn.Parameter(torch.randn(400, 30))
    return {
        "model": model,
        "optimizer": optimizer,
        "dtypes": {name: (octets & 1 if name == "bool" else octets).view(kind) for name, kind in TORCH_DTYPES.items()},
        "arrays": [np.array(["größe", "b"]), np.arange(4, dtype=">i2"), np.array(["2026-01-02"], "M8[D]"), np.zeros(0)],
        "ties": {"a": weight, "b": weight},
        "keys": {0: 1, "0": 2, True: 3, "": 4, "a/b": 5, None: 6, (1, "x"): 7},
        "order": OrderedDict([("z", 1), ("a", torch.ones(2)), ("m", 2)]),
        "row": Row(torch.zeros(2), 1),
        "tables": [Counter("abba"), defaultdict(int, {"a": 1})],
        "values": [1, -0.0, float("nan"), 1 << 80, b"", b"a\0", "a\0", True, None, 2j, np.float32(1.5), np.bool_(True)],
        "runs": [list(range(20)), tuple([0.5] * 9), [True] * 8, ["a", 1] * 9],
        "deques": [collections.deque([1, 2], 5), collections.deque(range(20)), collections.deque()],
        "spaces": [argparse.Namespace(lr=0.1), types.SimpleNamespace(n=3)],
        "made": {"sparse": coo(), "quantized": quantized()},
        "empty": [{}, [], ()],
        "scalar": torch.tensor(1.5),
        "none": torch.zeros(0, 3),
    }


@pytest.mark.parametrize("gzip", [None, 1])
def test_what_was_exported_comes_back_exactly(tmp_path: Path, gzip: int | None) -> None:
    written(tmp_path / "ckpt", trained())
    export(tmp_path / "ckpt", tmp_path / "x.h5", Hdf5Writer(None if gzip is None else Filter(gzip)))
    expected = deeppart.load(tmp_path / "ckpt")
    found = load(tmp_path / "x.h5")
    assert difference(expected, found, ordered=False) is None
    assert list(found["order"]) == ["z", "a", "m"] and found["row"]._fields == ("z", "a")
    assert found["ties"]["a"] is found["ties"]["b"] and found["deques"][0].maxlen == 5
    done = import_checkpoint(tmp_path / "x.h5", tmp_path / "again", step=7)
    assert (done.form, done.files) == ("hdf5", 1)
    again = deeppart.load(tmp_path / "again", step=7)
    assert difference(expected, again, ordered=False) is None
    assert again["ties"]["a"].data_ptr() == again["ties"]["b"].data_ptr()


def test_objects_with_tensors_in_them(tmp_path: Path) -> None:
    state = {
        "plan": Plan(3, torch.ones(2)),
        "space": types.SimpleNamespace(t=torch.full((3,), 2.0)),
        "window": collections.deque([torch.full((1 << 20,), 3.0), np.arange(5.0)]),
    }
    written(tmp_path / "ckpt", state)
    export(tmp_path / "ckpt", tmp_path / "x.h5")
    expected = bits(deeppart.load(tmp_path / "ckpt"))
    assert bits(load(tmp_path / "x.h5")) == expected and type(load(tmp_path / "x.h5")["plan"]).__name__ == "Plan"
    import_checkpoint(tmp_path / "x.h5", tmp_path / "again")
    assert bits(deeppart.load(tmp_path / "again")) == expected


def test_states_of_scripts(tmp_path: Path) -> None:
    """Enums, dataclasses, sets, dates and the like, as `deeppart.load` gives them."""
    written(tmp_path / "ckpt", script_values.state(1))
    export(tmp_path / "ckpt", tmp_path / "x.h5")
    import_checkpoint(tmp_path / "x.h5", tmp_path / "again")
    live = script_values.state(0)
    with deeppart.Checkpointer(persistent_dir=tmp_path / "again") as ck:
        ck.restore(live)
    expected = script_values.state(1)
    found = {key: live["values"][key] for key in expected["values"]}  # an archive has no order of keys
    assert bits(found) == bits(expected["values"])
    assert bits(live["in place"]["deque"]) == bits(expected["in place"]["deque"])


def test_a_part_of_an_archive(tmp_path: Path) -> None:
    written(tmp_path / "ckpt", trained())
    export(tmp_path / "ckpt", tmp_path / "x.h5", keys=["optimizer/*", "order"])
    expected = deeppart.load(tmp_path / "ckpt", keys=["optimizer/*"])
    found = load(tmp_path / "x.h5", "optimizer/*")
    assert difference(expected, found, ordered=False) is None
    assert set(found["optimizer"]["state"]) == {0, 1, 2, 3}
    with pytest.raises(StructureMismatchError, match=r"such as optimizer/\*"):
        load(tmp_path / "x.h5", "optimzer/*")


def test_groups_of_others_are_dicts_and_attributes_are_told(tmp_path: Path) -> None:
    def fill(file: Any) -> None:
        group = file.create_group("model/encoder")
        group["bias"], group.attrs["made by"] = np.ones(3, ">f4"), "somebody"
        file["epoch"] = 3

    path = made(tmp_path / "x.h5", fill)
    found = load(path)
    assert found["w"].tolist() == W.tolist() and found["epoch"].item() == 3
    assert found["model"]["encoder"]["bias"].dtype.str == ">f4"
    done = import_checkpoint(path, tmp_path / "ckpt")
    assert done.remarks == ("attributes of groups and data sets were left out: 1",)
    assert difference(found, deeppart.load(tmp_path / "ckpt")) is None


EDITS: dict[str, tuple[Any, str]] = {
    "another type": (lambda f: f["state/t"].attrs.__setitem__("type", "torch.int32"), "not what its attribute says"),
    "an unknown type": (lambda f: f["state/t"].attrs.__setitem__("type", "torch.load"), "a type this library"),
    "a type that numpy would evaluate": (
        lambda f: f["state/t"].attrs.__setitem__("type", "numpy.(1,)f4"), "a type this library",
    ),
    "an unknown container": (lambda f: f["state/l"].attrs.__setitem__("type", "os.system"), "cannot be read"),
    "a list with a hole": (lambda f: f["state/l"].__delitem__("0"), "cannot be read"),
    "no class": (lambda f: f["state/r"].attrs.__setitem__("name", "a b"), "cannot be read"),
    "no JSON": (lambda f: f["state/k/1"].attrs.__setitem__("key", "[" * 100_000), "cannot be read"),
    "a deque of no length": (lambda f: f["state/d"].attrs.__setitem__("form", '["deque", "x"]'), "cannot be read"),
    "a form of ours alone": (lambda f: f["state/d"].attrs.__setitem__("form", '["module", "x"]'), "cannot be read"),
    "data of no dataclass": (
        lambda f: f["state/l"].attrs.__setitem__("form", '["dataclass", "m", "q", ["a"]]'), "do not make one",
    ),
    "a number as text": (lambda f: f["state/v"].attrs.__setitem__("type", "str"), ""),
    "a value of no kind": (lambda f: f["state/v"].attrs.__setitem__("type", "eval"), "no kind that is known"),
    "an order of other names": (lambda f: f["state/r"].attrs.__setitem__("order", '["z"]'), "cannot be read"),
    "no state": (lambda f: f.__delitem__("state"), "has no state"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_edited_archives(tmp_path: Path, name: str) -> None:
    state = {
        "t": torch.ones(4), "l": [torch.ones(1), 2], "r": Row(1, torch.ones(1)), "k": {1: torch.ones(1)},
        "d": collections.deque([torch.ones(1)], 3), "v": 5,
    }  # fmt: skip
    written(tmp_path / "ckpt", state)
    export(tmp_path / "ckpt", tmp_path / "x.h5")
    edit, said = EDITS[name]
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        edit(file)
    if not said:
        assert load(tmp_path / "x.h5")["v"] == "5"
        return
    with pytest.raises(CorruptFileError, match=said):
        load(tmp_path / "x.h5")


def test_archives_of_before_have_no_order(tmp_path: Path) -> None:
    """Without it a namedtuple cannot be made: its fields would be exchanged."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.attrs["deeppart_archive"] = 1
        state = file.create_group("state")
        state.attrs["type"] = "dict"
        row = state.create_group("row")
        row.attrs["type"], row.attrs["name"] = "namedtuple", "Row"
        for name, value in (("z", 1), ("a", 2)):
            row[name] = value
            row[name].attrs["type"] = "int"
    assert load(tmp_path / "x.h5") == {"row": {"a": 2, "z": 1}}
