"""Archives: what h5py reads from one, knowing nothing of deeppart, is what the checkpoint holds."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import torch

import deeppart
from deeppart.extension.export import export
from deeppart.interop import load
from tests.states import difference
from tests.unit.cli_support import call, call_json, flip, make_state, part_path, save
from tests.unit.interop.making import saved
from tests.unit.save.test_incremental import config as incremental_config
from tests.unit.save.test_incremental import part
from tests.unit.save.test_incremental import save as save_incremental


def test_an_archive_holds_the_state(tmp_path: Path) -> None:
    save(tmp_path / "ckpt", 10, 20)
    out = tmp_path / "out.h5"
    printed = call("export", tmp_path / "ckpt", out)
    assert "step 20: 8 leaves and 7 values" in printed
    with h5py.File(out) as file:
        assert dict(file.attrs) | {"library": "", "created": ""} == {
            "deeppart_archive": 3,
            "step": 20,
            "world_size": 1,
            "rank": 0,
            "library": "",
            "created": "",
        }
        np.testing.assert_array_equal(file["state/model/bias"][:], make_state(20.0)["model"]["bias"].numpy())
        assert file["state/step"][()] == 12
    assert difference(deeppart.load(tmp_path / "ckpt"), load(out)) is None
    assert sorted(os.listdir(tmp_path)) == ["ckpt", "out.h5"]


def test_tied_leaves_are_one_data_set(tmp_path: Path) -> None:
    base = torch.arange(20.0)
    saved(tmp_path / "ckpt", {"a": base, "b": base, "part": base[5:8], "turned": base.view(4, 5).T, "c": base + 1})
    out = export(tmp_path / "ckpt", tmp_path / "out.h5")
    assert (out.leaves, out.values, out.nbytes) == (5, 0, 4 * (20 + 20 + 3 + 20 + 20))
    with h5py.File(tmp_path / "out.h5") as file:
        state = file["state"]
        assert state["a"] == state["b"] and state["a"] != state["c"]
        np.testing.assert_array_equal(state["part"][:], [5, 6, 7])
        np.testing.assert_array_equal(state["turned"][:], base.view(4, 5).T.numpy())
    assert out.file_bytes < 4 * (20 + 3 + 20 + 20) + 20_000
    found = load(tmp_path / "out.h5")
    assert difference(deeppart.load(tmp_path / "ckpt"), found) is None
    assert {tensor.untyped_storage().data_ptr() for name, tensor in found.items() if name != "c"} == {
        found["a"].data_ptr()
    }
    assert torch.equal(load(tmp_path / "out.h5", "part")["part"], base[5:8])


def test_unchanged_chunks_come_from_earlier_steps(tmp_path: Path) -> None:
    with deeppart.Checkpointer(incremental_config(tmp_path)) as ck:
        save_incremental(ck, 1, 2, 3)
    base = part(tmp_path, 1)
    exported = call_json("export", tmp_path / "ckpt", tmp_path / "out.h5")
    assert exported["step"] == 3 and exported["nbytes"] > 10 * part_path(tmp_path / "ckpt", 3).stat().st_size
    assert difference(deeppart.load(tmp_path / "ckpt"), load(tmp_path / "out.h5")) is None
    flip(base, base.stat().st_size // 2)
    answer = call_json("export", tmp_path / "ckpt", tmp_path / "damaged.h5", code=1)
    assert answer["error"]["kind"] == "CorruptFileError"
    assert not list(tmp_path.glob("*damaged.h5*")) and not list(tmp_path.glob(".*damaged*"))
