"""Durable files: nothing under the name before commit, all of it after; and what may be replaced."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeppart.access import storage_error
from deeppart.errors import StorageError
from deeppart.storage.files import BLOCK_BYTES, DurableFile, Over, fill
from deeppart.testing.faults import StorageFaults


@pytest.mark.parametrize("direct", [False, True])
def test_the_name_appears_with_the_last_byte(tmp_path: Path, direct: bool) -> None:
    path = tmp_path / "step" / "part"
    file = DurableFile(path, direct=direct)
    pieces = [b"first", bytes(BLOCK_BYTES), b"last"]
    for piece in pieces:
        file.write(piece)
        assert not path.exists()
    file.commit()
    assert path.read_bytes() == b"".join(pieces) and os.listdir(path.parent) == ["part"]
    assert file.nbytes == BLOCK_BYTES + 9 and file.busy_s > 0


def test_without_leave_the_directory_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as refused:
        DurableFile(tmp_path / "unmounted" / "part", make_parent=False)
    assert refused.value.errno == errno.ENOENT and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("over", "old", "stays", "left"),
    [
        ("nothing", b"same", False, b"same"),
        ("nothing", b"other", False, b"other"),
        ("damaged", b"same", True, b"same"),
        ("damaged", b"other", True, b"same"),
        ("anything", b"other", True, b"same"),
    ],
)
def test_what_a_file_may_take_the_place_of(tmp_path: Path, over: Over, old: bytes, stays: bool, left: bytes) -> None:
    path = tmp_path / "part"
    path.write_bytes(old)
    file = DurableFile(path, over=over)
    file.write(b"same")
    if stays:
        file.commit()
    else:
        with pytest.raises(StorageError) as refused:
            file.commit()
        assert refused.value.errno == errno.EEXIST
    assert path.read_bytes() == left and os.listdir(tmp_path) == ["part"]


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "close", "fstat"])
def test_whatever_is_refused_is_a_storage_error_and_leaves_nothing(tmp_path: Path, operation: str) -> None:
    with StorageFaults(tmp_path) as faults:
        faults.refuse(0, errno.ENOSPC, only=(operation,))
        with pytest.raises(StorageError) as refused:
            fill(DurableFile(tmp_path / "part"), [b"bytes"])
        assert faults.refused == 1 and refused.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())


def test_an_error_of_whoever_gives_the_bytes_gives_the_file_up(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"first"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fill(DurableFile(tmp_path / "part"), pieces())
    assert not list(tmp_path.iterdir())


def test_begun_again_it_holds_only_what_follows(tmp_path: Path) -> None:
    file = DurableFile(tmp_path / "part")
    file.write(b"forgotten")
    file.restart()
    file.write(b"kept")
    file.commit()
    assert (tmp_path / "part").read_bytes() == b"kept" and file.nbytes == 4


def test_an_error_of_the_system_says_what_to_do(tmp_path: Path) -> None:
    error = storage_error("cannot write", OSError(errno.ENOSPC, "x"), tmp_path / "part")
    assert error.errno == errno.ENOSPC and "No space left" in str(error) and "free space" in str(error)
    assert str(tmp_path / "part") in str(error)
    assert "look at the system log" in str(storage_error("cannot write", OSError(errno.EIO, "x"), tmp_path))
