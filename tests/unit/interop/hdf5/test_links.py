"""Links of HDF5 files are followed within the file, and to an end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from deeppart.errors import CorruptFileError, DeeppartError, UnsupportedLeafError
from deeppart.interop.hdf5 import load
from tests.unit.interop.hdf5.making import W, made


def circle(file: Any) -> None:
    file["a"], file["b"] = h5py.SoftLink("/b"), h5py.SoftLink("/a")


def long_way(file: Any) -> None:
    for number in range(40):
        file[f"s{number}"] = h5py.SoftLink(f"/s{number + 1}")
    file["s40"] = np.ones(2)


def itself(file: Any) -> None:
    group = file.create_group("g")
    group["again"] = group


def deep(file: Any) -> None:
    group = file
    for _ in range(300):
        group = group.create_group("g")


def through_an_external_one(file: Any) -> None:
    file["out"], file["soft"] = h5py.ExternalLink("other.h5", "/"), h5py.SoftLink("/out/secret")


HOSTILE: dict[str, tuple[Callable[[Any], object], type[DeeppartError], str]] = {
    "external": (lambda f: f.__setitem__("x", h5py.ExternalLink("other.h5", "/secret")), UnsupportedLeafError, "ext"),
    "soft, into an external": (through_an_external_one, UnsupportedLeafError, "external link"),
    "soft in circles": (circle, CorruptFileError, "without an end"),
    "soft, too many": (long_way, CorruptFileError, "without an end"),
    "a group in itself": (itself, CorruptFileError, "contains itself"),
    "too deep": (deep, CorruptFileError, "nested too deeply"),
    "a named type": (lambda f: f.__setitem__("t", np.dtype("f4")), UnsupportedLeafError, "TypeFloatID"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_leads_elsewhere_is_refused_by_name_and_the_rest_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with h5py.File("other.h5", "w") as other:
        other["secret"] = np.arange(3)
    fill, kind, said = HOSTILE[name]
    path = made(tmp_path / "x.h5", fill)
    with pytest.raises(kind, match=said) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert load(path, "w")["w"].tolist() == W.tolist()


def test_soft_and_hard_links_within_the_file(tmp_path: Path) -> None:
    def fill(file: Any) -> None:
        inner = file.create_group("a/b")
        inner["twin"], inner["up"] = file["w"], h5py.SoftLink("/a/b/twin")
        inner["here"], file["down"] = h5py.SoftLink("./twin"), h5py.SoftLink("a/b")
        file["nowhere"] = h5py.SoftLink("/a/none/x")

    found = load(made(tmp_path / "x.h5", fill))
    inner = found["a"]["b"]
    assert found["w"] is inner["twin"] is inner["up"] is inner["here"] is found["down"]["twin"]
    assert "nowhere" not in found and found["w"].tolist() == W.tolist()


def test_many_names_of_groups_come_to_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty groups that each have the next one twice: a million paths."""

    def fill(file: Any) -> None:
        group = file.create_group("0")
        for number in range(1, 21):
            below = file.create_group(f"level{number}")
            group["a"] = group["b"] = below
            group = below

    monkeypatch.setattr("deeppart.interop.hdf5._MOST_LINKS", 5000)
    with pytest.raises(CorruptFileError, match="too many links"):
        load(made(tmp_path / "x.h5", fill))


def test_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    def fill(file: Any) -> None:
        for group in (file.create_group("known", track_order=True), file.create_group("unknown")):
            for name in "zam":
                group[name] = 1.0

    found = load(made(tmp_path / "x.h5", fill))
    assert list(found["known"]) == ["z", "a", "m"] and list(found["unknown"]) == ["a", "m", "z"]


@pytest.mark.parametrize("length", [0, 8, 100, 1000, 3000])
def test_files_that_were_cut_off(tmp_path: Path, length: int) -> None:
    path = made(tmp_path / "x.h5", lambda file: file.create_dataset("b", data=np.zeros(5000)))
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CorruptFileError, match="cannot be read"):
        load(path)
