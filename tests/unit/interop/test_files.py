"""Files of foreign checkpoints: what is not there, ends early, or is no file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from deeppart.errors import CorruptFileError, RestoreError, StorageError
from deeppart.interop.files import ForeignFile, is_directory, names_in, read_small


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


def test_errors_do_not_speak_of_parts(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="a file of a foreign checkpoint") as caught:
        ForeignFile(tmp_path / "none")
    assert caught.value.errno == errno.ENOENT and "part" not in caught.value.summary
    with pytest.raises(CorruptFileError, match="is no file"):
        ForeignFile(tmp_path)


def test_small_files(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"12345")
    (tmp_path / "a").write_bytes(b"")
    assert read_small(tmp_path / "b", 5) == b"12345" and names_in(tmp_path) == ["a", "b"]
    with pytest.raises(CorruptFileError, match="too long"):
        read_small(tmp_path / "b", 4)
    with pytest.raises(FileNotFoundError):
        read_small(tmp_path / "c", 4)
    assert is_directory(tmp_path) and not is_directory(tmp_path / "a")
    with pytest.raises(RestoreError, match="no such checkpoint"):
        is_directory(tmp_path / "c")
    with pytest.raises(StorageError, match="cannot list"):
        names_in(tmp_path / "c")
