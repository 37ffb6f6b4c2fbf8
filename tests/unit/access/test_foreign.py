"""Files of others: read whoever they belong to, and nothing but files is opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deeppart import access


def read(path: Path) -> bytes:
    with os.fdopen(access.open_foreign(path), "rb") as file:
        return file.read()


def test_what_everyone_may_write_to_is_read_in_a_guarded_directory_too(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"theirs")
    path.chmod(0o666)
    with access.guarded(tmp_path, access.persistent_rules("private")):
        with pytest.raises(access.ForeignAccessError):
            access.open_file(path)
        assert read(path) == b"theirs"


def test_links_are_followed_as_in_the_folders_of_hugging_face(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "0f").write_bytes(b"bytes")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "model").symlink_to("../blobs/0f")
    assert read(tmp_path / "snapshot" / "model") == b"bytes"
    assert access.is_foreign_directory(tmp_path / "snapshot")
    assert access.names_in_foreign(tmp_path / "snapshot") == ["model"]


@pytest.mark.timeout(20)
def test_a_fifo_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    for name in ("fifo", "link"):
        with pytest.raises(access.NotRegularError):
            access.open_foreign(tmp_path / name)


def test_nothing_but_files(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/null"), Path("/dev/zero")):
        with pytest.raises(access.NotRegularError):
            access.open_foreign(path)
    with pytest.raises(FileNotFoundError):
        access.open_foreign(tmp_path / "none")
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="symbolic links"):
        access.open_foreign(tmp_path / "round")
