"""Files of a level, small and large: whole or not there, and nothing read beyond what they may be long."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from deeppart.access import storage_error
from deeppart.errors import CorruptFileError, StorageError
from deeppart.storage.files import (
    ALIGNMENT,
    BLOCK_BYTES,
    Appending,
    DurableFile,
    append_line,
    block_memory,
    fill,
    put_file,
    read_file,
    write_file,
)
from deeppart.testing.faults import StorageFaults


def test_an_error_of_whoever_gives_the_bytes_gives_the_file_up(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"first"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fill(DurableFile(tmp_path / "part"), pieces())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("operation", ["write", "fsync", "rename"])
def test_a_refusal_leaves_the_old_file_whole_and_nothing_beside_it(tmp_path: Path, operation: str) -> None:
    path = tmp_path / "record"
    write_file(path, b"first")
    with StorageFaults(tmp_path) as faults:
        faults.refuse(0, errno.EIO, only=(operation,))
        with pytest.raises(StorageError):
            write_file(path, b"second")
        assert faults.refused == 1
    assert read_file(path, 100) == b"first" and os.listdir(tmp_path) == ["record"]


def test_no_file_and_no_access_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "record", 100)
    with pytest.raises(CorruptFileError, match="a regular file"):
        read_file(tmp_path, 100)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorruptFileError):  # and nobody waits for a writer
        read_file(tmp_path / "pipe", 100)


def test_longer_than_allowed_is_damage(tmp_path: Path) -> None:
    write_file(tmp_path / "record", b"x" * 100)
    assert len(read_file(tmp_path / "record", 100)) == 100
    with pytest.raises(CorruptFileError, match="at most 99 bytes"):
        read_file(tmp_path / "record", 99)


def test_what_is_put_takes_the_place_of_what_was_there_in_a_directory_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "status"
    (tmp_path / "precious").write_bytes(b"precious")
    path.symlink_to(tmp_path / "precious")
    for data in (b"", b"first", b"second, longer"):
        put_file(path, data)
        assert read_file(path, 100) == data
    assert (tmp_path / "precious").read_bytes() == b"precious", "a link is replaced, not followed"
    with pytest.raises(StorageError):
        put_file(tmp_path / "no directory" / "status", b"first")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError):
        put_file(tmp_path / "folder", b"first")
    assert sorted(os.listdir(tmp_path)) == ["folder", "precious", "status"]


@pytest.mark.parametrize("operation", ["open", "write", "rename"])
def test_what_cannot_be_put_leaves_the_old_file_whole(tmp_path: Path, operation: str) -> None:
    path = tmp_path / "status"
    put_file(path, b"first")
    with StorageFaults(tmp_path) as faults:
        faults.refuse(0, errno.ENOSPC, only=(operation,))
        with pytest.raises(StorageError):
            put_file(path, b"second")
        assert faults.refused == 1 and not faults.log.count(("fsync", "status"))
    assert read_file(path, 100) == b"first" and os.listdir(tmp_path) == ["status"]


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


@pytest.mark.parametrize("kind", ["symbolic", "hard", "fifo", "directory"])
def test_lines_are_not_added_to_what_somebody_else_may_have_put_there(tmp_path: Path, kind: str) -> None:
    path, precious = tmp_path / "events", tmp_path / "precious"
    precious.write_bytes(b"precious")
    if kind == "symbolic":
        path.symlink_to(precious)
    elif kind == "hard":
        os.link(precious, path)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(StorageError):
        append_line(path, b"line\n")
    assert precious.read_bytes() == b"precious"


class Plain(Appending):
    """A file that is only appended to."""

    def __init__(self, path: Path, *, direct: bool) -> None:
        super().__init__(path, path, direct=direct, limit=None)
        flags = os.O_WRONLY | os.O_CREAT | (os.O_DIRECT if direct else 0)
        self._fd, self._direct = os.open(path, flags, 0o600), direct

    def close(self) -> None:
        self.flush()
        os.close(self._fd)


def test_a_write_that_is_taken_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is written in another way: it is not aligned any more."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: min(len(data), ALIGNMENT + 1)]))
    file = Plain(tmp_path / "file", direct=False)
    data = os.urandom(10 * ALIGNMENT)
    file.write(data)
    file.close()
    assert (tmp_path / "file").read_bytes() == data


@pytest.mark.parametrize("nbytes", [1, 4096, BLOCK_BYTES, BLOCK_BYTES + 1])
def test_it_is_aligned_zeroed_writable_and_as_long_as_asked(nbytes: int) -> None:
    blocks = [block_memory(nbytes) for _ in range(3)]
    gc.collect()
    for number, block in enumerate(blocks):
        found = np.frombuffer(block, dtype=np.uint8)
        assert len(found) == nbytes and found.ctypes.data % (2 << 20) == 0 and not found.any()
        found[:] = number + 1
    assert [set(block) for block in map(bytes, blocks)] == [{1}, {2}, {3}]


def test_advice_and_what_the_caller_knows_better() -> None:
    path = Path("/some/part")
    full = storage_error("cannot write", OSError(errno.ENOSPC, "x"), path)
    assert full.errno == errno.ENOSPC and "free space" in str(full) and str(path) in str(full)
    assert "mounted read-only" in str(storage_error("cannot write", OSError(errno.EROFS, "x"), path))
    assert "look at the system log" in str(storage_error("cannot write", OSError("without a number"), path))
    assert "ask the owner" in str(storage_error("cannot write", OSError(errno.EIO, "x"), path, todo="ask the owner"))
