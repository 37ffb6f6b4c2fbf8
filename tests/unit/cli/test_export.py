"""``deeppart export``: what is chosen, and what is not touched."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from deeppart.storage import MANIFEST_NAME
from tests.unit.cli_support import call, call_json, forge, invoke, save, step_dir


def test_keys_ranks_and_steps_are_chosen(tmp_path: Path) -> None:
    forge(tmp_path, 5)
    out = tmp_path / "out.h5"
    assert call_json("export", tmp_path, out, "--rank", 2, "--step", 5)["per_rank"] == 2
    with h5py.File(out) as file:
        assert set(file["state"]) == {"a", "b", "rng", "position"} and file.attrs["rank"] == 2
        assert file["state/position"][()] == 1002 and (file["state/rng"][:] == 2).all()
        assert file["state/rng"].attrs["per_rank"] and "per_rank" not in file["state/a"].attrs
        np.testing.assert_array_equal(file["state/a"][:], np.arange(900, dtype=np.float32))
    assert "2 of them are rank 0's own" in call("export", tmp_path, out, "--overwrite")
    call("export", tmp_path, out, "--overwrite", "--keys", "a", "--keys", "pos*")
    with h5py.File(out) as file:
        assert set(file["state"]) == {"a", "position"}
    call("export", tmp_path, tmp_path / "n.h5", "--keys", "nothing*", code=1)
    call("export", tmp_path, tmp_path / "n.h5", "--rank", 3, code=1)
    call("export", tmp_path, tmp_path / "n.h5", "--step", 4, code=1)
    assert not (tmp_path / "n.h5").exists()


@pytest.mark.parametrize("name", ["out.bin", "out", "out.h5.gz"])
def test_a_name_that_says_no_format(name: str, tmp_path: Path) -> None:
    save(tmp_path / "ckpt", 1)
    error = call_json("export", tmp_path / "ckpt", tmp_path / name, code=2)["error"]
    assert ".h5, .hdf5" in error["expected"] and ".safetensors" in error["expected"] and "--to" in error["todo"]
    assert not (tmp_path / name).exists()
    assert call_json("export", tmp_path / "ckpt", tmp_path / name, "--to", "torch")["form"] == "torch"


def test_a_file_of_that_name_is_not_touched(tmp_path: Path) -> None:
    save(tmp_path / "ckpt", 1)
    out = tmp_path / "out.h5"
    out.write_text("precious")
    answer = call_json("export", tmp_path / "ckpt", out, code=2)
    assert answer["error"]["kind"] == "StorageError" and "--overwrite" in answer["error"]["todo"]
    assert out.read_text() == "precious"
    step_dir(tmp_path / "ckpt", 1).joinpath(MANIFEST_NAME).unlink()
    assert invoke("export", tmp_path / "ckpt", out, "--overwrite").exit_code == 1
    assert out.read_text() == "precious"
    call("export", tmp_path / "nowhere", tmp_path / "other.h5", code=1)
    save(tmp_path / "ckpt", 2)
    call("export", tmp_path / "ckpt", tmp_path / "no" / "such.h5", code=2)
    call("export", tmp_path / "ckpt", out, "--overwrite")
    with h5py.File(out) as file:
        assert file.attrs["step"] == 2


def test_storage_that_fills_up_leaves_nothing(
    tmp_path: Path, run_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """A limit on the size of files stands for a full file system: the write fails the same way."""
    save(tmp_path / "ckpt", 1)
    code = f"""
        import resource
        from deeppart.errors import StorageError
        from deeppart.extension.export import export
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
        try:
            export({str(tmp_path / "ckpt")!r}, {str(tmp_path / "out.h5")!r})
        except StorageError as error:
            print(error)
    """
    done = run_python(code, timeout=200)
    assert done.returncode == 0 and "cannot write the archive" in done.stdout, done.stdout + done.stderr
    assert os.listdir(tmp_path) == ["ckpt"]
