"""Sections: each stays in its room, whatever is written to it; the file gets its name with the table, or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest

from deeppart.errors import StorageError
from deeppart.part import FileSource, NodeTable, Section, node_file_name, part_file_name
from deeppart.storage import files
from deeppart.storage.files import BLOCK_BYTES, DurableFile, Room, SectionFile
from deeppart.testing.faults import StorageFaults

MIB = 1 << 20
NAME = node_file_name(0, 2)


def made(directory: Path) -> DurableFile:
    return DurableFile(directory / NAME)


def room(file: DurableFile, number: int, nbytes: int = MIB) -> Room:
    return Room(file.temporary, file.inode, number * MIB, nbytes)


def section(file: DurableFile, number: int, nbytes: int = MIB) -> SectionFile:
    return SectionFile(file.path / part_file_name(number, 2), room(file, number, nbytes))


def table(*lengths: int) -> NodeTable:
    return NodeTable(0, 2, tuple(Section(n, n * MIB, length, "0" * 32) for n, length in enumerate(lengths)))


def test_each_writes_its_own_and_the_file_appears_with_the_table(tmp_path: Path) -> None:
    file = made(tmp_path)
    first, second = section(file, 0), section(file, 1, 3 * BLOCK_BYTES)
    data = os.urandom(5000), os.urandom(2 * BLOCK_BYTES + 7)
    second.write(data[1][: BLOCK_BYTES + 1])
    first.write(data[0][:4096])
    first.write(data[0][4096:])
    second.write(data[1][BLOCK_BYTES + 1 :])
    assert os.listdir(tmp_path) == [file.temporary.name]
    for each in (second, first):
        each.commit()
        assert each.busy_s > 0
    assert not (tmp_path / NAME).exists()
    files.complete(file, table(5000, len(data[1])))
    assert os.listdir(tmp_path) == [NAME]
    for number, expected in enumerate(data):
        with FileSource(tmp_path / NAME / part_file_name(number, 2)) as source:
            assert bytes(source.read_at(0, source.size)) == expected


@pytest.mark.parametrize("pieces", [[MIB + 1], [MIB, 1], [MIB - 1, 2], [1] * 3 + [MIB]])
def test_a_part_that_outgrows_its_room_touches_nothing_beyond(tmp_path: Path, pieces: list[int]) -> None:
    file = made(tmp_path)
    neighbour = section(file, 1)
    neighbour.write(b"n" * 5000)
    neighbour.commit()
    each = section(file, 0)
    with pytest.raises(StorageError, match=r"longer than the room") as caught:
        for length in pieces:
            each.write(b"x" * length)
        pytest.fail("it was taken")
    assert caught.value.errno is None and str(tmp_path / NAME) in (caught.value.where or ""), "not to be tried again"
    each.abort()
    assert file.temporary.read_bytes()[MIB:] == b"n" * 5000


def test_again_from_the_beginning_of_the_section(tmp_path: Path) -> None:
    """A shorter one, too: what was longer before has no meaning, and the file ends with the footer."""
    file = made(tmp_path)
    section(file, 0).abort()
    first = section(file, 0)
    first.write(b"0" * 5000)
    first.commit()
    for attempt in (b"a" * 300_000, b"b" * 200_000):
        each = section(file, 1)
        each.write(b"y" * 10)
        each.restart()
        each.write(attempt)
        each.commit()
    files.complete(file, table(5000, 200_000))
    with FileSource(tmp_path / NAME / part_file_name(1, 2)) as source:
        assert bytes(source.read_at(0, source.size)) == b"b" * 200_000


def test_only_the_file_that_was_made_is_written_to(tmp_path: Path) -> None:
    file = made(tmp_path)
    with pytest.raises(StorageError) as missing:
        SectionFile(file.path, Room(tmp_path / "gone", file.inode, 0, MIB))
    assert missing.value.errno == errno.ENOENT and os.listdir(tmp_path) == [file.temporary.name], "none is made"
    other = Room(file.temporary, file.inode + 1, 0, MIB)
    with pytest.raises(StorageError, match="another file"):
        SectionFile(file.path, other)
    for make in (os.mkdir, os.mkfifo, lambda path: os.symlink(file.temporary, path)):
        strange = tmp_path / "strange"
        make(strange)
        with pytest.raises(StorageError):
            SectionFile(file.path, Room(strange, file.inode, 0, MIB))
        os.rmdir(strange) if strange.is_dir() and not strange.is_symlink() else strange.unlink()
    file.abort()


def test_no_other_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"committed")
    file = made(tmp_path)
    each = section(file, 0)
    each.write(b"x" * 5000)
    each.commit()
    with pytest.raises(StorageError) as caught:
        files.complete(file, table(5000))
    assert caught.value.errno == errno.EEXIST
    assert (tmp_path / NAME).read_bytes() == b"committed" and os.listdir(tmp_path) == [NAME]


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "close", "fstat", "lseek", "rename_noreplace"])
def test_whatever_is_refused_is_a_storage_error_and_leaves_nothing(tmp_path: Path, operation: str) -> None:
    """The first call of that kind, the second, and so on, until none of them is made any more."""
    for number in range(100):
        directory = tmp_path / str(number)
        directory.mkdir()
        before = len(os.listdir("/proc/self/fd"))
        with StorageFaults(tmp_path) as faults:
            faults.refuse(number, errno.ENOSPC, only=(operation,))
            problem = write_all(directory)
        assert len(os.listdir("/proc/self/fd")) == before
        if problem is None:  # also where the refusal says nothing of the file: closing a directory
            assert os.listdir(directory) == [NAME]
        else:
            assert problem.errno == errno.ENOSPC and not os.listdir(directory)
        if not faults.refused:
            assert number or operation == "lseek", "there was nothing to refuse"
            return
    pytest.fail("it never ends")


def write_all(directory: Path) -> StorageError | None:
    """A node file of one section; what went wrong."""
    with contextlib.ExitStack() as undo:
        try:
            file = made(directory)
            undo.callback(file.abort)
            each = section(file, 0)
            undo.callback(each.abort)
            each.write(b"x" * 5000)
            each.commit()
            files.complete(file, table(5000))
        except StorageError as error:
            return error
        undo.pop_all()
    return None
