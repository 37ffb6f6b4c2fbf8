"""Foreign checkpoints: recognised by what is there, read as files, chosen from by globs; and what a name asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from deeppart.errors import (
    CorruptFileError,
    RestoreError,
    StructureMismatchError,
    UnsupportedLeafError,
)
from deeppart.extension.export import export
from deeppart.extension.nested import check_tree
from deeppart.interop import load
from deeppart.interop.formats import recognize
from deeppart.interop.opened import Opened
from deeppart.interop.safetensors import encode_header
from tests.states import difference
from tests.unit.interop.making import saved

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def safetensors_file(path: Path) -> Path:
    path.write_bytes(encode_header([("a", "float32", (2,), 8)], {}) + torch.ones(2).numpy().tobytes())
    return path


def test_each_kind_by_any_name(tmp_path: Path) -> None:
    state = {"a": torch.ones(2)}
    torch.save(state, tmp_path / "pytorch_model.bin")
    dcp.save(state, checkpoint_id=tmp_path / "dcp")
    safetensors_file(tmp_path / "weights")
    export(saved(tmp_path / "ckpt", state), tmp_path / "archive")
    (tmp_path / "hf").mkdir()
    safetensors_file(tmp_path / "hf" / "model.safetensors")
    (tmp_path / "link").symlink_to("hf")
    kinds = {"pytorch_model.bin": "torch", "dcp": "dcp", "weights": "safetensors", "hf": "safetensors"}
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
    with pytest.raises(CorruptFileError, match="is not a regular file"):
        load("/dev/zero")


# --- what is open: its checksums, the choice of globs, and what no tree is ---


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
    with pytest.raises(UnsupportedLeafError, match="contains itself"):
        check_tree(inside, "here")
    shared = [1, 2, {"x": 3}]
    check_tree([shared] * 100_000, "here")
