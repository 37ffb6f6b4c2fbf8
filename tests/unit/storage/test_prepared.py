"""Files made in advance: only whole ones are ever taken, and none is left behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from deeppart.errors import StorageError
from deeppart.storage import mapped
from deeppart.storage.files import DurableFile
from deeppart.storage.mapped import forget_all, lies_in_memory
from deeppart.storage.node import NodeLevel
from deeppart.storage.spares import make_spare, spares_directory, unfinished_directory
from deeppart.testing.faults import StorageFaults

NAME, OTHER = "part-00001-of-00002.dpp", "part-00000-of-00002.dpp"
BASE, OTHER_BASE = f"base-00001-of-00002-{7:032x}.dpp", f"base-00000-of-00002-{7:032x}.dpp"
LENGTH = 20_000_001


@pytest.fixture
def spares(memory: Path) -> Path:
    if not lies_in_memory(memory):
        pytest.skip("no file system in memory here")
    return memory / ".spare-me"


def test_it_is_whole_mapped_and_written_over(spares: Path) -> None:
    forget_all()
    assert make_spare(spares, NAME, LENGTH, lambda: True)
    status = (spares / NAME).stat()
    assert status.st_size == LENGTH and status.st_blocks * 512 >= LENGTH
    assert (status.st_dev, status.st_ino) in mapped._kept.mappings
    path = spares.parent / "step" / NAME
    file = DurableFile(path, spares=spares)
    assert os.listdir(spares) == []
    file.write(b"x" * 1000)
    file.commit()
    assert path.read_bytes() == b"x" * 1000 and path.stat().st_ino == status.st_ino


def test_one_that_is_not_finished_is_seen_by_nobody_and_goes(spares: Path) -> None:
    seen = []

    def is_wanted() -> bool:
        seen.append((spares.exists() and os.listdir(spares), os.listdir(unfinished_directory(spares))))
        return len(seen) < 3

    assert not make_spare(spares, NAME, LENGTH, is_wanted)
    assert seen == [(False, [NAME])] * 3
    assert os.listdir(unfinished_directory(spares)) == [] and not spares.exists()


def test_on_storage_none_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "_IN_MEMORY", ())  # whatever the tests' directory is on
    spares = tmp_path / ".spare-me"
    assert not make_spare(spares, NAME, LENGTH, lambda: True)
    assert not spares.exists() and os.listdir(unfinished_directory(spares)) == []


def test_where_there_is_no_room_nothing_is_left(spares: Path) -> None:
    with StorageFaults(spares.parent) as faults:
        faults.refuse(1, errno.ENOSPC, only=("write",))
        assert not make_spare(spares, NAME, LENGTH, lambda: True)
        assert faults.refused == 1
    assert os.listdir(unfinished_directory(spares)) == [] and not spares.exists()


def test_where_nothing_can_be_made_it_is_no_error(memory: Path) -> None:
    (memory / "file").write_bytes(b"")
    assert not make_spare(memory / "file" / ".spare-me", NAME, LENGTH, lambda: True)


def test_each_rank_takes_its_own_first(spares: Path) -> None:
    spares.mkdir()
    inodes = {}
    for name in (OTHER_BASE, BASE, OTHER, NAME):
        (spares / name).write_bytes(b"old")
        inodes[name] = (spares / name).stat().st_ino
    taken = []
    for step in range(4):
        file = DurableFile(spares.parent / f"step{step}" / NAME, spares=spares)
        file.write(b"new")
        file.commit()
        taken.append(file.path.stat().st_ino)
    assert taken == [inodes[name] for name in (NAME, BASE, OTHER_BASE, OTHER)]


def test_a_later_session_removes_what_a_crash_has_left(memory: Path) -> None:
    lineage, crashed, next_one = "1" * 32, "2" * 32, "3" * 32
    level = NodeLevel(memory, lineage, "local", crashed)
    for folder in (spares_directory(level.root, crashed), unfinished_directory(spares_directory(level.root, crashed))):
        folder.mkdir()
        (folder / NAME).write_bytes(b"zeros")
    NodeLevel(memory, lineage, "local", next_one).drop_foreign_spares()
    assert os.listdir(level.root) == []


def test_the_session_itself_removes_both(memory: Path) -> None:
    level = NodeLevel(memory, "1" * 32, "local", "2" * 32)
    if not level.prepare_file(NAME, 1000, lambda: True):
        pytest.skip("no file system in memory here")
    (unfinished_directory(spares_directory(level.root, "2" * 32)) / BASE).write_bytes(b"zeros")
    level.drop_spares()
    assert os.listdir(level.root) == []


@pytest.mark.parametrize("level", ["local", "partner", "parity"])
@pytest.mark.parametrize("operation", ["write", "open"])
def test_it_gives_way_where_any_level_of_the_node_has_no_space(memory: Path, level: str, operation: str) -> None:
    """To what is written now."""
    levels = {name: NodeLevel(memory, "1" * 32, name, "2" * 32) for name in ("local", "partner", "parity")}
    if not levels["local"].prepare_file(BASE, 1000, lambda: True):
        pytest.skip("no file system in memory here")
    unfinished = unfinished_directory(spares_directory(levels["local"].root, "2" * 32))
    unfinished.mkdir(exist_ok=True)
    (unfinished / NAME).write_bytes(b"zeros")
    path = memory / "1" / NAME
    path.parent.mkdir()
    with StorageFaults(memory) as faults:
        levels[level]._spares = memory / "none"  # as if others had taken them: this one has to find room
        faults.refuse(2 if operation == "open" else 0, errno.ENOSPC, only=(operation,))
        file = levels[level]._open(path, mend=False)
        file.write(b"now")
        file.commit()
        assert faults.refused == 1
    assert path.read_bytes() == b"now" and not mapped._kept.mappings
    assert not unfinished.exists() and not spares_directory(levels["local"].root, "2" * 32).exists()


def test_where_nothing_can_give_way_the_write_fails(memory: Path) -> None:
    level = NodeLevel(memory, "1" * 32, "local", "2" * 32)
    with StorageFaults(memory) as faults:
        faults.refuse(0, errno.ENOSPC, only=("write",), count=None)
        file = level._open(memory / NAME, mend=False)
        with pytest.raises(StorageError, match="cannot write"):
            file.write(b"now")
        file.abort()
        assert faults.refused == 1
