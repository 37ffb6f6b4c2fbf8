"""Elements of data sets: every type that a leaf can have, read some MiB at a time, and nothing that is not there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from deeppart.errors import CorruptFileError, DeeppartError, UnsupportedLeafError
from deeppart.interop.hdf5 import _MOST_CHUNK_BYTES, load, open_hdf5
from tests.unit.interop.hdf5.making import made

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


def test_texts_nothing_times_and_enumerations(tmp_path: Path) -> None:
    def fill(file: Any) -> None:
        file["text"], file["nothing"] = "größe", h5py.Empty("f4")
        times = np.array(["2026-01-02"], "<M8[D]")
        file["time"] = times.astype(h5py.opaque_dtype(times.dtype))

    found = load(made(tmp_path / "x.h5", fill))
    assert found["text"] == "größe" and found["nothing"] is None
    assert found["time"].dtype.str == "<M8[D]" and found["time"][0] == np.datetime64("2026-01-02")


SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "rows": ((1000, 70), (7, 70)),
    "boxes": ((100, 90, 80), (30, 40, 50)),
    "a long row": ((2, 500_000), (1, 1000)),
    "one": ((100_000,), (33_333,)),
    "thin": ((3, 1, 5), (2, 1, 1)),
}


@pytest.mark.parametrize("slab", [1, 4000, 16 << 20])
@pytest.mark.parametrize("name", SHAPES)
def test_bytes_in_any_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, slab: int) -> None:
    shape, chunks = SHAPES[name]
    monkeypatch.setattr("deeppart.interop.hdf5._SLAB_BYTES", slab)
    array = np.random.default_rng(1).integers(0, 1 << 40, shape)
    options = {"chunks": chunks, "compression": "gzip", "shuffle": True}
    path = made(tmp_path / "x.h5", lambda f: f.create_dataset("x", data=array, **options))
    with ExitStack() as closing:
        opened = open_hdf5(path, closing, "x")
        (source,) = [each for each in opened.sources.values() if each.nbytes == array.nbytes]
        found = bytearray(array.nbytes)
        at, rng = 0, np.random.default_rng(2)
        while at < len(found):
            piece = min(int(rng.integers(1, array.nbytes)), len(found) - at)
            source.read_into(at, memoryview(found)[at : at + piece])
            at += piece
        again = bytearray(24)
        source.read_into(8, memoryview(again))
    assert bytes(found) == array.tobytes() and bytes(again) == array.tobytes()[8:32]


def test_rows_are_read_one_by_one_where_their_chunks_are_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deeppart.interop.hdf5._MOST_CHUNK_BYTES", 4096)
    monkeypatch.setattr("deeppart.interop.hdf5._SLAB_BYTES", 1024)
    array = np.arange(64 * 600, dtype="<i4").reshape(64, 600)
    path = made(tmp_path / "x.h5", lambda f: f.create_dataset("x", data=array, chunks=(16, 8), compression="lzf"))
    lengths: list[int] = []
    empty = np.empty
    monkeypatch.setattr("deeppart.interop.hdf5.np.empty", lambda n, dtype: lengths.append(n) or empty(n, dtype))
    with ExitStack() as closing:
        opened = open_hdf5(path, closing, "x")
        (source,) = [each for each in opened.sources.values() if each.nbytes == array.nbytes]
        lengths.clear()
        found = bytearray(array.nbytes)
        source.read_into(0, memoryview(found))
    assert bytes(found) == array.tobytes() and max(lengths) <= 4096


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


def long_chunks(file: Any) -> None:
    shape = (_MOST_CHUNK_BYTES // 4 + 1,)
    file.create_dataset("x", shape=shape, chunks=shape, maxshape=(None,), dtype="f4", compression="gzip")


HOSTILE: dict[str, tuple[Callable[[Any], object], type[DeeppartError], str]] = {
    "never written": (unwritten, CorruptFileError, "more elements than the file can hold"),
    "hardly written": (sparse, CorruptFileError, "more elements than the file can hold"),
    "chunks that fill all memory": (long_chunks, CorruptFileError, "too long"),
    "in another file": (elsewhere, UnsupportedLeafError, "external storage"),
    "virtual": (virtual, UnsupportedLeafError, "virtual data set"),
    "a filter": (filtered, UnsupportedLeafError, "filter 305"),
    "texts of any length": (lambda f: f.__setitem__("x", ["a", "bc"]), UnsupportedLeafError, "of a kind"),
    "lists": (
        lambda f: f.create_dataset("x", (2,), h5py.vlen_dtype(np.int32)), UnsupportedLeafError, "vlen",
    ),
    "references": (lambda f: f.create_dataset("x", (2,), h5py.ref_dtype), UnsupportedLeafError, "reference"),
    "records": (lambda f: f.create_dataset("x", (2,), [("a", "f4"), ("b", "i4")]), UnsupportedLeafError, "compound"),
    "what numpy would evaluate": (tagged, UnsupportedLeafError, "opaque"),
    "long doubles": (lambda f: f.__setitem__("x", np.zeros(2, "g")), UnsupportedLeafError, "float of 16"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_there_or_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.bin").write_bytes(bytes(32))
    with h5py.File("other.h5", "w") as other:
        other["x"] = np.arange(3.0)
    fill, kind, said = HOSTILE[name]
    path = made(tmp_path / "x.h5", fill)
    with pytest.raises(kind, match=said) as caught:
        load(path)
    assert f"{path}, x" in str(caught.value)
    assert load(path, "w").keys() == {"w"}


def test_data_sets_over_the_same_bytes_are_not_more_than_the_file(tmp_path: Path) -> None:
    """Forged: a thousand headers that all say the same place of the file."""
    path = made(
        tmp_path / "x.h5", lambda f: [f.create_dataset(f"d{n}", data=np.full(40_000, n, "u1")) for n in range(9)]
    )
    with h5py.File(path) as file:
        places = [file[f"d{n}"].id.get_offset() for n in range(9)]
    data = bytearray(path.read_bytes())
    for place in places[1:]:
        at = data.find(place.to_bytes(8, "little") + (40_000).to_bytes(8, "little"))
        assert at > 0
        data[at : at + 8] = places[0].to_bytes(8, "little")
    path.write_bytes(data[: places[0] + 60_000])
    with pytest.raises(CorruptFileError):
        load(path)
