"""Sources give all the bytes asked for or one of deeppart's errors; only regular files are opened."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeppart.errors import CorruptFileError, StorageError
from deeppart.part import FileSource, MemorySource
from deeppart.part.source import ByteSource

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


@pytest.mark.parametrize(("offset", "length"), [(0, 2561), (2560, 1), (3000, 1), (-1, 1), (5, -1), (0, 2**62)])
def test_reads_nothing_beyond(source: ByteSource, offset: int, length: int) -> None:
    with pytest.raises(CorruptFileError):
        source.read_at(offset, length)
    if 0 <= length < 10_000:
        with pytest.raises(CorruptFileError):
            source.read_into(offset, memoryview(bytearray(length)))


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


MAPPED = bytes(range(256)) * 64


def mappings_of(path: Path) -> int:
    return Path("/proc/self/maps").read_text(encoding="utf-8").count(str(path))


def test_a_mapping_outlives_its_source_and_ends_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(MAPPED)
    with FileSource(path) as source:
        mapped = source.mapped(5000, 9000)
        for start, stop in ((0, len(MAPPED) + 1), (4096, 4096)):
            with pytest.raises((CorruptFileError, StorageError)):
                source.mapped(start, stop)
        os.truncate(path, 9000)
        with pytest.raises(StorageError, match="cannot map"):
            source.mapped(0, len(MAPPED))
    assert bytes(mapped) == MAPPED[5000:9000] and mapped.readonly and mappings_of(path) == 1
    del mapped
    assert mappings_of(path) == 0
