"""What is made beside its place, and what is left of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deeppart import access
from deeppart.errors import StorageError
from deeppart.extension.export.beside import BesideFile, BesideFolder


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    with access.open_folder(tmp_path) as folder:
        with BesideFile(folder, "x", tmp_path / "x") as file:
            with file.stream() as stream:
                for size in (3, 5000, 9 << 20, 0, 1):
                    assert stream.write(bytes([size % 251]) * size) == size
            assert not (tmp_path / "x").exists() and stream.nbytes == 3 + 5000 + (9 << 20) + 1
            assert file.finish() == stream.nbytes
    expected = b"".join(bytes([size % 251]) * size for size in (3, 5000, 9 << 20, 1))
    assert (tmp_path / "x").read_bytes() == expected and os.listdir(tmp_path) == ["x"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with access.open_folder(tmp_path) as folder:
        with pytest.raises(ZeroDivisionError):
            with BesideFile(folder, "x", tmp_path / "x") as file, file.stream() as stream:
                stream.write(bytes(10 << 20))
                raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError):
            with BesideFolder(folder, "d", tmp_path / "d") as made:
                with made.file(".metadata") as file, file.stream() as stream:
                    stream.write(b"x")
                    file.finish()
                raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


def test_a_directory_takes_the_place_of_one_that_was_made_so(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "model-00001-of-00002.safetensors").write_text("old")
    with access.open_folder(tmp_path) as folder:
        for name in (".metadata", "model.safetensors"):
            with BesideFolder(folder, "d", tmp_path / "d") as made:
                with made.file(name) as file:
                    with file.stream() as stream:
                        stream.write(b"new")
                    file.finish()
                assert made.finish() == 3
            assert os.listdir(tmp_path) == ["d"] and os.listdir(tmp_path / "d") == [name]
        (tmp_path / "d" / "notes.txt").write_text("mine")
        with pytest.raises(StorageError, match="more than an export makes") as caught:
            with BesideFolder(folder, "d", tmp_path / "d") as made:
                made.finish()
        assert caught.value.found == "notes.txt" and os.listdir(tmp_path) == ["d"]
