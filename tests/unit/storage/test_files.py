"""Small files of a level, beyond what every store has to do: whole or not there, and no link is followed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from deeppart.errors import CorruptFileError, StorageError
from deeppart.storage import PosixStore
from deeppart.telemetry.recorder import append_line
from tests.storage_faults import StorageFaults


@pytest.mark.parametrize("operation", ["write", "fsync", "rename"])
def test_a_refusal_leaves_the_old_file_whole_and_nothing_beside_it(tmp_path: Path, operation: str) -> None:
    path = tmp_path / "record"
    put(path, b"first", durable=True)
    with StorageFaults(tmp_path) as faults:
        faults.refuse(0, errno.EIO, only=(operation,))
        with pytest.raises(StorageError):
            put(path, b"second", durable=True)
        assert faults.refused == 1
    assert PosixStore(path.parent).get(path.name, 100) == b"first" and os.listdir(tmp_path) == ["record"]


def put(path: Path, data: bytes, *, durable: bool = False) -> None:
    PosixStore(path.parent).replace(path.name, data, durable=durable)


def test_what_is_put_takes_the_place_of_what_was_there_in_a_directory_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "status"
    (tmp_path / "precious").write_bytes(b"precious")
    path.symlink_to(tmp_path / "precious")
    for data in (b"", b"first", b"second, longer"):
        put(path, data)
        assert PosixStore(path.parent).get(path.name, 100) == data
    assert (tmp_path / "precious").read_bytes() == b"precious", "a link is replaced, not followed"
    with pytest.raises(StorageError):
        put(tmp_path / "no directory" / "status", b"first")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError):
        put(tmp_path / "folder", b"first")
    with pytest.raises(CorruptFileError, match="a regular file"):
        PosixStore(tmp_path).get("folder", 100)
    assert sorted(os.listdir(tmp_path)) == ["folder", "precious", "status"]


def test_lines_are_added_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "events"
    for line in (b"1\n", b"2\n"):
        append_line(path, line)
    assert path.read_bytes() == b"1\n2\n"
    with StorageFaults(tmp_path) as faults:
        faults.refuse(0, errno.ENOSPC, only=("write",))
        with pytest.raises(StorageError) as refused:
            append_line(path, b"3\n")
    assert refused.value.errno == errno.ENOSPC
