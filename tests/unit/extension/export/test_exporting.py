"""An export as a whole: what is refused before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from deeppart.errors import RestoreError, StorageError, StructureMismatchError
from deeppart.extension.export import export
from deeppart.interop.dcp.writing import DcpWriter
from tests.unit.cli_support import save


def test_what_is_refused_leaves_nothing(tmp_path: Path) -> None:
    save(tmp_path / "ckpt", 1)
    (tmp_path / "taken").write_text("precious")
    with pytest.raises(StorageError, match="there is a file of that name"):
        export(tmp_path / "ckpt", tmp_path / "taken")
    with pytest.raises(RestoreError):
        export(tmp_path / "ckpt", tmp_path / "x", rank=1)
    with pytest.raises(StructureMismatchError, match="no such container"):
        export(tmp_path / "ckpt", tmp_path / "x", inner="model/none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt", "taken"]
    assert (tmp_path / "taken").read_text() == "precious"
    done = export(tmp_path / "ckpt", tmp_path / "x", inner="model")
    assert (done.form, done.files, done.leaves) == ("hdf5", 1, 3)


def test_what_stands_there_is_called_what_it_is(tmp_path: Path) -> None:
    save(tmp_path / "ckpt", 1)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(StorageError, match="there is a directory of that name") as caught:
            export(tmp_path / "ckpt", tmp_path / "folder", overwrite=overwrite)
        assert "does not replace a directory" in str(caught.value) and str(tmp_path / "folder") in str(caught.value)
        with pytest.raises(StorageError, match="there is a file of that name") as caught:
            export(tmp_path / "ckpt", tmp_path / "file", DcpWriter(), overwrite=overwrite)
        assert "does not replace a file" in str(caught.value)
    with pytest.raises(StorageError, match="there is a directory of that name") as caught:
        export(tmp_path / "ckpt", tmp_path / "folder", DcpWriter())
    assert "--overwrite" in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt", "file", "folder"]
    export(tmp_path / "ckpt", tmp_path / "folder", DcpWriter(), overwrite=True)
    assert (tmp_path / "folder" / ".metadata").exists()


def test_a_step_is_not_written_over_by_its_own_archive(tmp_path: Path) -> None:
    save(tmp_path / "ckpt", 1)
    (step,) = (tmp_path / "ckpt").glob("step-0*")
    before = {path.name: path.read_bytes() for path in step.iterdir()}
    (tmp_path / "link").symlink_to(step)
    for out in (step / "manifest", step / "new", tmp_path / "link" / "manifest"):
        with pytest.raises(StorageError, match="into a step"):
            export(tmp_path / "ckpt", out, overwrite=True)
    assert {path.name: path.read_bytes() for path in step.iterdir()} == before
    assert export(tmp_path / "ckpt", tmp_path / "ckpt" / "archive.h5").step == 1
