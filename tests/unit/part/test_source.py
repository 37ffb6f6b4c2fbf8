"""Sources give all the bytes asked for or one of deeppart's errors; only regular files are opened."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeppart.errors import CorruptFileError, StorageError
from deeppart.part import ByteSource, FileSource, MemorySource, PartReader
from tests.golden import make_v1

DATA = bytes(range(256)) * 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


@pytest.fixture(params=["file", "memory"])
def source(request: pytest.FixtureRequest, path: Path) -> Iterator[ByteSource]:
    if request.param == "memory":
        yield MemorySource(bytearray(DATA))
        return
    with contextlib.closing(FileSource(path)) as file:
        yield file


@pytest.mark.parametrize(("offset", "length"), [(0, 0), (0, 1), (0, 2560), (2559, 1), (2560, 0), (300, 700)])
def test_reads_exactly(source: ByteSource, offset: int, length: int) -> None:
    assert source.size == 2560
    assert bytes(source.read_at(offset, length)) == DATA[offset : offset + length]
    buffer = bytearray(length)
    source.read_into(offset, memoryview(buffer))
    assert buffer == DATA[offset : offset + length]


@pytest.mark.parametrize(("offset", "length"), [(0, 2561), (2560, 1), (3000, 1), (-1, 1), (5, -1), (0, 2**62)])
def test_reads_nothing_beyond(source: ByteSource, offset: int, length: int) -> None:
    with pytest.raises(CorruptFileError):
        source.read_at(offset, length)
    if 0 <= length < 10_000:
        with pytest.raises(CorruptFileError):
            source.read_into(offset, memoryview(bytearray(length)))


def test_memory_is_not_copied() -> None:
    data = bytearray(b"abc")
    view = MemorySource(data).read_at(1, 1)
    data[1] = 0
    assert bytes(view) == b"\0"
    assert isinstance(view, memoryview)
    assert view.readonly


def test_missing_file_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        FileSource(tmp_path / "none")
    assert caught.value.errno == errno.ENOENT
    assert str(tmp_path / "none") in str(caught.value)


def test_irregular_files_are_refused_without_blocking(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        old = Path.cwd()
        os.chdir(tmp_path)  # the length of a socket's path is limited
        server.bind("socket")
        os.chdir(old)
    for name in ("link", "dangling", "directory", "fifo", "socket"):
        with pytest.raises(CorruptFileError, match="not a regular file"):
            FileSource(tmp_path / name)
    with pytest.raises(CorruptFileError, match="not a regular file"):
        FileSource("/dev/null")


def test_file_that_shrinks_while_open(path: Path) -> None:
    with FileSource(path) as source:
        os.truncate(path, 100)
        assert bytes(source.read_at(0, 100)) == DATA[:100]
        with pytest.raises(CorruptFileError, match="ends before"):
            source.read_at(50, 100)


def test_short_reads_are_continued_and_errors_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.preadv

    def three_bytes(fd: int, buffers: list[memoryview], offset: int) -> int:
        return whole(fd, [buffers[0][:3]], offset)

    def broken(fd: int, buffers: list[memoryview], offset: int) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with FileSource(path) as source:
        monkeypatch.setattr(os, "preadv", three_bytes)
        assert bytes(source.read_at(7, 1000)) == DATA[7:1007]
        monkeypatch.setattr(os, "preadv", broken)
        with pytest.raises(StorageError, match=str(path)) as caught:
            source.read_at(0, 1)
    assert caught.value.errno == errno.EIO


def test_close_twice_and_no_descriptor_is_left(path: Path, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    source = FileSource(path)
    source.close()
    source.close()
    with pytest.raises(StorageError) as caught:
        source.read_at(0, 1)
    assert caught.value.errno == errno.EBADF
    with pytest.raises(CorruptFileError):
        FileSource(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with FileSource(tmp_path / "empty") as source, pytest.raises(CorruptFileError, match="cannot have this length"):
        PartReader(source, where="empty")


def test_part_through_a_file(tmp_path: Path) -> None:
    data, summary = make_v1.make_part(1)
    (tmp_path / "part").write_bytes(data)
    with FileSource(tmp_path / "part") as source:
        reader = PartReader(source, where="part", expected_index_digest=summary.index_digest)
        assert b"".join(map(bytes, map(reader.read_chunk, range(2)))) == make_v1.RAW[1]
        assert reader.verify(expected_digest=summary.digest) == summary.digest
