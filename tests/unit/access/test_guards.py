"""Which rules hold where, and the directories that are held open by them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from deeppart import access
from deeppart.access import READING, ForeignAccessError, folders
from tests.unit.access.directories import NODE, PERSISTENT, operations, read


def test_a_directory_that_comes_back_is_used_again(root: Path) -> None:
    """Moved away, a file system unmounted: nothing of what was open before is used in its place."""
    assert read(root / "step" / "part") == b"part"
    root.rename(root.with_name("moved"))
    with pytest.raises(FileNotFoundError):
        read(root / "step" / "part")
    root.mkdir()
    with pytest.raises(FileNotFoundError):
        read(root / "step" / "part")
    root.rmdir()
    root.with_name("moved").rename(root)
    assert read(root / "step" / "part") == b"part"


def test_descriptors_are_given_back(root: Path) -> None:
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    read(root / "step" / "part")
    before = opened()
    for _ in range(20):
        read(root / "step" / "part")
        for operation in operations(root / "step" / "missing").values():
            with contextlib.suppress(OSError):
                operation()
        if access.exists(root / "step" / "other"):
            access.remove(root / "step" / "other")
    assert opened() == before
    access.release(root, PERSISTENT)
    assert opened() == before - 1
    access.guard(root, PERSISTENT)


def test_rules_of_a_job_come_before_those_of_a_command(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root").chmod(0o777)
    with access.guarded(tmp_path / "root", READING):
        assert access.names_in(tmp_path / "root") == []
        with access.guarded(tmp_path / "root", PERSISTENT):
            with pytest.raises(ForeignAccessError):
                access.names_in(tmp_path / "root")
        assert access.names_in(tmp_path / "root") == []


# --- which rules hold -------------------------------------------------------------------------------------------------


def rules_at(path: Path) -> object:
    found = folders.rules_for(str(path))
    return None if found is None else (Path(found[0]), found[1])


def test_the_nearest_directory_above_decides(tmp_path: Path) -> None:
    inner = tmp_path / "root" / "inner"
    assert rules_at(inner) is None
    with access.guarded(tmp_path / "root", PERSISTENT), access.guarded(inner, NODE):
        assert rules_at(tmp_path / "root") == rules_at(tmp_path / "root" / "x") == (tmp_path / "root", PERSISTENT)
        assert rules_at(inner) == rules_at(inner / "step" / "part") == (inner, NODE)
        assert rules_at(tmp_path) is None and rules_at(Path("/")) is None
        assert rules_at(tmp_path / "roots") is None, "a name that only begins so is another directory"
    assert rules_at(inner) is None


def test_what_is_guarded_twice_is_released_twice(tmp_path: Path) -> None:
    """Two jobs of one process in one directory."""
    access.guard(tmp_path, NODE)
    access.guard(tmp_path, NODE)
    access.release(tmp_path, NODE)
    assert rules_at(tmp_path) == (tmp_path, NODE)
    access.release(tmp_path, NODE)
    assert rules_at(tmp_path) is None
    access.release(tmp_path, NODE)
    access.release(tmp_path / "never", NODE)
    assert rules_at(tmp_path) is None


def test_the_directories_of_a_job_are_released_together_and_once(tmp_path: Path) -> None:
    job, other = access.Guards(), access.Guards()
    other.add(tmp_path / "a", NODE)
    job.add(tmp_path / "a", NODE)
    job.add(tmp_path / "b", PERSISTENT)
    job.release()
    assert rules_at(tmp_path / "b") is None
    job.release()
    assert rules_at(tmp_path / "a") == (tmp_path / "a", NODE), "another job's stays"
    other.release()
    assert rules_at(tmp_path / "a") is None


# --- what is held open ------------------------------------------------------------------------------------------------


def is_open(descriptor: int, identity: tuple[int, int]) -> bool:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return (status.st_dev, status.st_ino) == identity


def test_a_directory_is_checked_again_when_it_is_another(root: Path) -> None:
    folders.held(str(root), PERSISTENT)
    root.rename(root.with_name("moved"))
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(ForeignAccessError, match="everyone"):
        folders.held(str(root), PERSISTENT)


def test_whoever_lets_go_last_closes(root: Path) -> None:
    held = folders.held(str(root), PERSISTENT)
    descriptor, identity = held.fd, held.identity
    access.release(root, PERSISTENT)
    assert is_open(descriptor, identity), "an operation may still be under way in it"
    del held
    assert not is_open(descriptor, identity)
