"""HDF5 files: what `deeppart export` has written comes back exactly; edited and foreign ones are refused."""

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
from deeppart.errors import CorruptFileError, DeeppartError, RestoreError, StructureMismatchError, UnsupportedLeafError
from deeppart.extension.export import export
from deeppart.interop import load
from deeppart.interop.importing import import_checkpoint
from deeppart.state.tensors.leaves import TORCH_DTYPES
from tests.features import script_values
from tests.features.script_files import bits
from tests.states import difference
from tests.tensor_kinds import coo, quantized
from tests.unit.interop.making import saved

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


def test_what_was_exported_comes_back_exactly(tmp_path: Path) -> None:
    saved(tmp_path / "ckpt", trained())
    export(tmp_path / "ckpt", tmp_path / "x.h5")
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


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["w"] = np.ones(3)
    with pytest.raises(RestoreError, match="no archive of deeppart export"):
        load(tmp_path / "x.h5")


def replaced(link: Any) -> Callable[[Any], None]:
    def edit(file: Any) -> None:
        del file["state/t"]
        file["state/t"] = link

    return edit


def made_otherwise(**options: Any) -> Callable[[Any], None]:
    """``t`` as a data set of another kind."""

    def edit(file: Any) -> None:
        del file["state/t"]
        file.create_dataset("state/t", (4,), "<f4", **options)

    return edit


def virtual(file: Any) -> None:
    layout = h5py.VirtualLayout(shape=(4,), dtype="<f4")
    layout[:] = h5py.VirtualSource("other.h5", "x", shape=(4,))
    del file["state/t"]
    file.create_virtual_dataset("state/t", layout)


def large(file: Any) -> None:
    """``t`` has more elements than the file could hold, none of which was written."""
    document(lambda d: d["structure"]["leaves"][0].__setitem__(2, [1 << 40]))(file)
    del file["state/t"]
    file.create_dataset("state/t", (1 << 40,), "<f4")


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
    "a link": (replaced(h5py.SoftLink("/state/w")), UnsupportedLeafError, "another link"),
    "a link to another file": (replaced(h5py.ExternalLink("other.h5", "/x")), UnsupportedLeafError, "another link"),
    "in chunks": (made_otherwise(chunks=(2,)), UnsupportedLeafError, "contiguous"),
    "compressed": (made_otherwise(compression="gzip"), UnsupportedLeafError, "contiguous"),
    "in another file": (made_otherwise(external=[("other.bin", 0, 16)]), UnsupportedLeafError, "contiguous"),
    "virtual": (virtual, UnsupportedLeafError, "contiguous"),
    "never written": (made_otherwise(), CorruptFileError, "never written"),
    "too large": (large, CorruptFileError, "more elements than the file can hold"),
    "no structure": (lambda f: f.__delitem__("structure"), CorruptFileError, "no data set"),
    "a view of an array": (
        document(
            lambda d: d["structure"]["leaves"].__setitem__(
                slice(0, 2), [["numpy", "<f4", [4]], ["numpy", "<f4", [2], [0, 0, [1]]]]
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


@pytest.mark.parametrize("length", [0, 8, 100, 1000, 3000])
def test_files_that_were_cut_off(tmp_path: Path, archive: bytes, length: int) -> None:
    path = tmp_path / "x.h5"
    path.write_bytes(archive[:length])
    with pytest.raises(CorruptFileError, match="cannot be read"):
        load(path, form="hdf5")
