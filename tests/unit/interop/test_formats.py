"""Foreign checkpoints: recognised by what is there, read as files, chosen from by globs; and what a name asks for."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import h5py
import pytest
import torch
import torch.distributed.checkpoint as dcp

import deeppart
from deeppart.errors import (
    ConfigError,
    CorruptFileError,
    RestoreError,
    StructureMismatchError,
    UnsupportedLeafError,
)
from deeppart.extension import ForeignFile
from deeppart.extension.nested import check_tree
from deeppart.interop import load
from deeppart.interop.formats import form_of, recognize, writer_for
from deeppart.interop.opened import FileSpan, Opened, address_of, tensors_in
from deeppart.interop.safetensors import encode_header
from deeppart.testing.states import difference

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def safetensors_file(path: Path) -> Path:
    path.write_bytes(encode_header([("a", "float32", (2,), 8)], {})[0] + torch.ones(2).numpy().tobytes())
    return path


def test_each_kind_by_any_name(tmp_path: Path) -> None:
    state = {"a": torch.ones(2)}
    torch.save(state, tmp_path / "pytorch_model.bin")
    torch.save(state, tmp_path / "old", _use_new_zipfile_serialization=False)
    dcp.save(state, checkpoint_id=tmp_path / "dcp")
    safetensors_file(tmp_path / "weights")
    with h5py.File(tmp_path / "archive", "w") as file:
        file["a"] = state["a"].numpy()
    (tmp_path / "hf").mkdir()
    safetensors_file(tmp_path / "hf" / "model.safetensors")
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


# --- which format an export has ---


def test_names_ask_for_formats() -> None:
    asked = {name: form_of(Path(name)) for name in ("a.h5", "a.hdf5", "a.PT", "a.pth", "b/a.safetensors")}
    assert list(asked.values()) == ["hdf5", "hdf5", "torch", "torch", "safetensors"]
    for name in ("a", "a.bin"):
        with pytest.raises(ConfigError, match="does not say its format"):
            form_of(Path(name))


def test_options_that_a_format_does_not_have() -> None:
    for form, out in (("safetensors", "x.safetensors"), ("torch", "x.pt"), ("hdf5", "x.h5")):
        with pytest.raises(ConfigError, match="no shards"):
            writer_for(form, Path(out), 100)
    for form in ("safetensors", "torch", "dcp"):
        with pytest.raises(ConfigError, match="no compression"):
            writer_for(form, Path("x"), None, "gzip")
    assert writer_for("dcp", Path("x"), 100).is_directory


# --- files that are not there, end early, or are no file ---


def test_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    with ForeignFile(path) as file:
        assert (file.size, bytes(file.read_at(10, 5)), bytes(file.read_at(100, 0))) == (100, bytes(range(10, 15)), b"")
        for offset, length in ((96, 5), (-1, 2), (0, 1 << 62), (101, 0)):
            with pytest.raises(CorruptFileError, match="a foreign checkpoint ends before"):
                file.read_at(offset, length)
        os.truncate(path, 50)
        with pytest.raises(CorruptFileError, match="ends before"):
            file.read_at(40, 20)


def test_small_files(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"12345")
    (tmp_path / "a").write_bytes(b"")
    assert ForeignFile.read_all(tmp_path / "b", 5) == b"12345" and ForeignFile.names_in(tmp_path) == ["a", "b"]
    with pytest.raises(CorruptFileError, match="too long"):
        ForeignFile.read_all(tmp_path / "b", 4)
    with pytest.raises(FileNotFoundError):
        ForeignFile.read_all(tmp_path / "c", 4)
    assert ForeignFile.names_in(tmp_path / "a") is None
    with pytest.raises(RestoreError, match="no such checkpoint"):
        ForeignFile.names_in(tmp_path / "c")


# --- what is open: its checksums, the choice of globs, and what no tree is ---


def test_a_checksum_is_of_all_bytes(tmp_path: Path) -> None:
    data = bytes(range(200))
    (tmp_path / "x").write_bytes(b"head" + data)
    buffer = bytearray(200)
    with ForeignFile(tmp_path / "x") as file:
        for crc in (zlib.crc32(data), zlib.crc32(data) ^ 1):
            span = FileSpan(file, 4, 200, crc, "it")
            span.read_into(50, memoryview(buffer)[:10])  # some of it alone says nothing
            span.read_into(0, memoryview(buffer)[:120])
            if crc == zlib.crc32(data):
                span.read_into(120, memoryview(buffer)[120:])
                assert bytes(buffer) == data
                span.check()
            else:
                with pytest.raises(CorruptFileError, match="is damaged"):
                    span.read_into(120, memoryview(buffer)[120:])
                with pytest.raises(CorruptFileError, match="is damaged"):
                    other = FileSpan(file, 4, 200, crc, "it")
                    other.read_into(50, memoryview(buffer)[:10])
                    other.check()


def test_globs_choose(tmp_path: Path) -> None:
    state = {"m": {"a": torch.ones(1), "b": [1, {"c": 2}]}, 5: (3, 4), "n": None}
    for keys, expected in (
        ("m", {"m": state["m"]}),
        ("m/b/*/c", {"m": {"b": [{"c": 2}]}}),
        (["5", "n"], {5: (3, 4), "n": None}),
        ("5/1", {5: [4]}),
        (None, state),
    ):
        opened = Opened("torch", state, {}, 1)
        opened.choose(keys, "here")
        assert difference(expected, opened.state) is None
    with pytest.raises(StructureMismatchError, match="m/a"):
        Opened("torch", state, {}, 1).choose("x", "here")


def paired(times: int, innermost: object) -> list[object]:
    """A list that has one twice, that has one twice, and so on: 2 to the power of ``times`` paths."""
    item = [innermost]
    for _ in range(times):
        item = [item, item]
    return item


def test_containers_that_stand_in_many_places_or_in_themselves_are_looked_into_once() -> None:
    a = torch.ones(2)
    inside: list[object] = [a]
    inside.append(inside)
    assert [each is a for each in tensors_in({"x": inside, "y": paired(60, 5)})] == [True]


@pytest.mark.parametrize("state", [[paired(60, 5)], {"x": [[]]}], ids=["paired", "deep"])
def test_what_is_no_tree_is_refused_by_name(state: object) -> None:
    if isinstance(state, dict):
        for _ in range(5000):
            state["x"] = [state["x"]]
    with pytest.raises(UnsupportedLeafError, match="no tree"):
        check_tree(state, "here")
    with pytest.raises(UnsupportedLeafError, match="no tree"):
        Opened("torch", state, {}, 1).choose("x", "here")
    inside: list[object] = []
    inside.append({"x": (inside,)})
    with pytest.raises(UnsupportedLeafError, match="in itself"):
        check_tree(inside, "here")
    shared = [1, 2, {"x": 3}]
    check_tree([shared] * 100_000, "here")


def test_the_memory_of_what_was_not_chosen_belongs_to_nothing(tmp_path: Path) -> None:
    """It is given back, and what is put there next would be taken for the tensor that was there."""
    state = {"a": torch.ones(5000), "b": torch.ones(5000)}
    (tmp_path / "x").write_bytes(bytes(10))
    with ForeignFile(tmp_path / "x") as file:
        sources = {address_of(each): FileSpan(file, 0, 10) for each in state.values()}
        opened = Opened("torch", state, sources, 1)
        opened.choose("b", "here")
        assert opened.sources.keys() == {address_of(state["b"])}
