"""HDF5 files: what `deeppart export` has written comes back exactly; files of others as nested groups; hostile ones."""

from __future__ import annotations

import argparse
import collections
import json
import types
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import deeppart
from deeppart.errors import CorruptFileError, DeeppartError, StructureMismatchError, UnsupportedLeafError
from deeppart.extension.export import export
from deeppart.extension.export.hdf5 import Filter, Hdf5Writer
from deeppart.interop.hdf5 import load
from deeppart.interop.importing import import_checkpoint
from deeppart.state.tensors.leaves import TORCH_DTYPES
from deeppart.testing.states import difference
from tests.features import script_values
from tests.features.script_files import bits
from tests.tensor_kinds import coo, quantized
from tests.unit.interop.making import saved

W = np.arange(12, dtype="<f4").reshape(3, 4)


def made(path: Path, fill: Callable[[Any], object]) -> Path:
    """A file that has ``w``, and what ``fill`` puts into it."""
    with h5py.File(path, "w") as file:
        file["w"] = W
        fill(file)
    return path


Row = namedtuple("Row", "z a")


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
    saved(tmp_path / "ckpt", trained())
    export(tmp_path / "ckpt", tmp_path / "x.h5", Hdf5Writer(None if gzip is None else Filter(gzip)))
    expected = deeppart.load(tmp_path / "ckpt")
    found = load(tmp_path / "x.h5")
    assert difference(expected, found) is None
    assert list(found["order"]) == ["z", "a", "m"] and found["row"]._fields == ("z", "a")
    assert found["ties"]["a"].data_ptr() == found["ties"]["b"].data_ptr() and found["deques"][0].maxlen == 5
    done = import_checkpoint(tmp_path / "x.h5", tmp_path / "again", step=7)
    assert (done.form, done.files) == ("hdf5", 1)
    again = deeppart.load(tmp_path / "again", step=7)
    assert difference(expected, again) is None
    assert again["ties"]["a"].data_ptr() == again["ties"]["b"].data_ptr()


def test_states_of_scripts(tmp_path: Path) -> None:
    """Enums, dataclasses, sets, dates and the like, as `deeppart.load` gives them."""
    saved(tmp_path / "ckpt", script_values.state(1))
    export(tmp_path / "ckpt", tmp_path / "x.h5")
    import_checkpoint(tmp_path / "x.h5", tmp_path / "again")
    live = script_values.state(0)
    with deeppart.Checkpointer(persistent_dir=tmp_path / "again") as ck:
        ck.restore(live)
    expected = script_values.state(1)
    assert bits(live["values"]) == bits(expected["values"])
    assert bits(live["in place"]["deque"]) == bits(expected["in place"]["deque"])


def test_a_part_of_an_archive(tmp_path: Path) -> None:
    saved(tmp_path / "ckpt", trained())
    export(tmp_path / "ckpt", tmp_path / "x.h5", keys=["optimizer/*", "order"])
    expected = deeppart.load(tmp_path / "ckpt", keys=["optimizer/*"])
    found = load(tmp_path / "x.h5", "optimizer/*")
    assert difference(expected, found) is None
    assert set(found["optimizer"]["state"]) == {0, 1, 2, 3}
    with_tuple = {"s": (torch.ones(1), torch.zeros(1), 5)}
    export(saved(tmp_path / "other", with_tuple), tmp_path / "other.h5")
    assert difference(deeppart.load(tmp_path / "other", keys="s/0"), load(tmp_path / "other.h5", "s/0")) is None
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


def renamed(file: Any) -> None:
    del file["state/t"]
    file["state/t"] = h5py.SoftLink("/state/v")


def texts(file: Any) -> None:
    del file["structure"]
    file["structure"] = ["{}", "{}"]


def document(change: Callable[[Any], object]) -> Callable[[Any], None]:
    def edit(file: Any) -> None:
        text = json.loads(bytes(file["structure"][:]))
        change(text)
        del file["structure"]
        file["structure"] = np.frombuffer(json.dumps(text).encode(), dtype=np.uint8)

    return edit


EDITS: dict[str, tuple[Callable[[Any], object], type[DeeppartError], str]] = {
    "another type": (
        document(lambda d: d["structure"]["leaves"][0].__setitem__(1, "int32")),
        CorruptFileError,
        "not match its structure",
    ),
    "another shape": (
        document(lambda d: d["structure"]["leaves"][0].__setitem__(2, [5])),
        CorruptFileError,
        "not match its structure",
    ),
    "a type that numpy would evaluate": (
        document(lambda d: d["structure"]["leaves"].__setitem__(0, ["numpy", "(1,)f4", [4], 0])),
        CorruptFileError,
        "a type this library",
    ),
    "an unknown container": (
        document(lambda d: d["structure"].__setitem__("tree", ["eval", []])),
        CorruptFileError,
        "cannot be read",
    ),
    "a name too few": (document(lambda d: d["names"].pop()), CorruptFileError, "number of data sets"),
    "no such data set": (lambda f: f.__delitem__("state/t"), CorruptFileError, "no data set"),
    "a link": (renamed, UnsupportedLeafError, "a soft link"),
    "no structure": (lambda f: f.__delitem__("structure"), CorruptFileError, "no data set"),
    "a view of an array": (
        document(
            lambda d: d["structure"]["leaves"].__setitem__(
                slice(0, 2), [["numpy", "<f4", [4], 0], ["numpy", "<f4", [2], 0, [0, 0, [1]]]]
            )
        ),
        CorruptFileError,
        "never written",
    ),
    "one data set for two leaves": (
        document(lambda d: d["names"].__setitem__(1, d["names"][0])),
        CorruptFileError,
        "same data set",
    ),
    "a structure of texts": (texts, CorruptFileError, "not a vector of bytes"),
    "no JSON": (lambda f: f["structure"].__setitem__(0, 0), CorruptFileError, "cannot be read"),
    "another version": (
        lambda f: f.attrs.__setitem__("deeppart_archive", 1),
        CorruptFileError,
        "the version of an archive",
    ),
}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("archive")
    export(saved(folder / "ckpt", {"t": torch.ones(4), "v": 5, "w": torch.ones(2)}), folder / "x.h5")
    return (folder / "x.h5").read_bytes()


@pytest.mark.parametrize("name", EDITS)
def test_edited_archives(tmp_path: Path, archive: bytes, name: str) -> None:
    (tmp_path / "x.h5").write_bytes(archive)
    edit, kind, said = EDITS[name]
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        edit(file)
    with pytest.raises(kind, match=said):
        load(tmp_path / "x.h5")


# --- elements: every type that a leaf can have, read some MiB at a time, and nothing that is not there ---


NUMBERS: dict[str, torch.dtype | None] = {
    "<f8": torch.float64, "<f4": torch.float32, "<f2": torch.float16, "<i8": torch.int64, "<i2": torch.int16,
    "|i1": torch.int8, "<u8": torch.uint64, "<u4": torch.uint32, "|u1": torch.uint8, "|b1": torch.bool,
    "<c8": torch.complex64, "<c16": torch.complex128, ">f4": None, ">i8": None, ">c16": None, "|S5": None,
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_types_of_others(tmp_path: Path, name: str) -> None:
    array = np.array([[0, 1], [2, 3]]).astype(name)
    path = made(tmp_path / "x.h5", lambda f: f.update({"x": array, "s": array[1, 1], "e": array[:0]}))
    found, dtype = load(path), NUMBERS[name]
    if dtype is None:
        assert found["x"].dtype.str == name and found["x"].tolist() == array.tolist()
    else:
        assert found["x"].dtype is dtype and found["x"].tolist() == array.tolist()
        assert found["s"].shape == () and found["s"].item() == array[1, 1]
    assert tuple(found["e"].shape) == (0, 2)


def many_unwritten(file: Any) -> None:
    for name in "xyz":
        file.create_dataset(name, shape=(1 << 19,), dtype="u1")


def large_chunk(file: Any) -> None:
    file.create_dataset("x", (10,), "u1", maxshape=(None,), chunks=(1 << 30,))


def twice(file: Any) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((4,))
    plist.set_deflate(1)
    plist.set_deflate(1)
    h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F64LE, h5py.h5s.create_simple((4,)), dcpl=plist)


def unwritten(file: Any) -> None:
    file.create_dataset("x", shape=(1 << 40,), dtype="f8")


def sparse(file: Any) -> None:
    made = file.create_dataset("x", shape=(1 << 20, 1 << 20), chunks=(64, 64), dtype="f8", compression="gzip")
    made[0, 0] = 1


def elsewhere(file: Any) -> None:
    file.create_dataset("x", shape=(4,), dtype="f8", external=[("other.bin", 0, 32)])


def virtual(file: Any) -> None:
    layout = h5py.VirtualLayout(shape=(3,), dtype="f8")
    layout[:] = h5py.VirtualSource("other.h5", "x", shape=(3,))
    file.create_virtual_dataset("x", layout)


def filtered(file: Any) -> None:
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((4,))
    plist.set_filter(305, h5py.h5z.FLAG_OPTIONAL, (1,))  # LZO, which this HDF5 does not have
    h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F64LE, h5py.h5s.create_simple((4,)), dcpl=plist)


def tagged(file: Any) -> None:
    kind = h5py.h5t.create(h5py.h5t.OPAQUE, 8)
    kind.set_tag(b"NUMPY:(1)i8")
    h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((4,)))


HOSTILE_ELEMENTS: dict[str, tuple[Callable[[Any], object], type[DeeppartError], str]] = {
    "never written": (unwritten, CorruptFileError, "more elements than the file can hold"),
    "hardly written": (sparse, CorruptFileError, "more elements than the file can hold"),
    "a chunk for ten bytes": (large_chunk, CorruptFileError, "more elements than the file can hold"),
    "compressed twice": (twice, UnsupportedLeafError, "applied twice"),
    "in another file": (elsewhere, UnsupportedLeafError, "external storage"),
    "virtual": (virtual, UnsupportedLeafError, "virtual data set"),
    "a filter": (filtered, UnsupportedLeafError, "filter 305"),
    "texts of any length": (lambda f: f.__setitem__("x", ["a", "bc"]), UnsupportedLeafError, "element type"),
    "lists": (
        lambda f: f.create_dataset("x", (2,), h5py.vlen_dtype(np.int32)), UnsupportedLeafError, "vlen",
    ),
    "references": (lambda f: f.create_dataset("x", (2,), h5py.ref_dtype), UnsupportedLeafError, "reference"),
    "records": (lambda f: f.create_dataset("x", (2,), [("a", "f4"), ("b", "i4")]), UnsupportedLeafError, "compound"),
    "what numpy would evaluate": (tagged, UnsupportedLeafError, "opaque"),
    "long doubles": (lambda f: f.__setitem__("x", np.zeros(2, "g")), UnsupportedLeafError, "float of 16"),
}  # fmt: skip


def test_what_was_never_written_is_counted_together(tmp_path: Path) -> None:
    path = made(tmp_path / "x.h5", many_unwritten)
    with pytest.raises(CorruptFileError, match="more elements than the file can hold"):
        load(path)
    assert len(load(path, ["x", "w"])["x"]) == 1 << 19


@pytest.mark.parametrize("name", HOSTILE_ELEMENTS)
def test_what_is_not_there_or_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.bin").write_bytes(bytes(32))
    with h5py.File("other.h5", "w") as other:
        other["x"] = np.arange(3.0)
    fill, kind, said = HOSTILE_ELEMENTS[name]
    path = made(tmp_path / "x.h5", fill)
    with pytest.raises(kind, match=said) as caught:
        load(path)
    assert f"{path}, x" in str(caught.value)
    assert load(path, "w").keys() == {"w"}


# --- links: hard ones alone are followed, and to an end ---


def itself(file: Any) -> None:
    group = file.create_group("g")
    group["again"] = group


def deep(file: Any) -> None:
    group = file
    for _ in range(300):
        group = group.create_group("g")


HOSTILE_LINKS: dict[str, tuple[Callable[[Any], object], type[DeeppartError], str]] = {
    "external": (lambda f: f.__setitem__("x", h5py.ExternalLink("other.h5", "/secret")), UnsupportedLeafError, "ext"),
    "soft": (lambda f: f.__setitem__("x", h5py.SoftLink("/w")), UnsupportedLeafError, "a soft link"),
    "a group in itself": (itself, CorruptFileError, "contains itself"),
    "too deep": (deep, CorruptFileError, "nested too deeply"),
    "a named type": (lambda f: f.__setitem__("t", np.dtype("f4")), UnsupportedLeafError, "TypeFloatID"),
}


@pytest.mark.parametrize("name", HOSTILE_LINKS)
def test_what_leads_elsewhere_is_refused_by_name_and_the_rest_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with h5py.File("other.h5", "w") as other:
        other["secret"] = np.arange(3)
    fill, kind, said = HOSTILE_LINKS[name]
    path = made(tmp_path / "x.h5", fill)
    with pytest.raises(kind, match=said) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert load(path, "w")["w"].tolist() == W.tolist()


@pytest.mark.parametrize("length", [0, 8, 100, 1000, 3000])
def test_files_that_were_cut_off(tmp_path: Path, length: int) -> None:
    path = made(tmp_path / "x.h5", lambda file: file.create_dataset("b", data=np.zeros(5000)))
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CorruptFileError, match="cannot be read"):
        load(path)
