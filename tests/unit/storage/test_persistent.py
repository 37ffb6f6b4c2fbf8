"""The persistent level: the manifest is the commit, which is whole or not there; an empty mount point is none."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart import access
from deeppart.errors import CheckpointError, StorageError
from deeppart.model import StepKey
from deeppart.storage import LINEAGE_NAME, DirectoryOwner, PersistentLevel, PosixStore, list_steps
from tests.conformance.levels import attempt
from tests.storage_faults import StorageFaults
from tests.unit.commits import begun, commit, manifest_file, step_directory


@pytest.fixture
def level(tmp_path: Path) -> PersistentLevel:
    (tmp_path / LINEAGE_NAME).write_text("{}")
    return PersistentLevel(PosixStore(tmp_path))


KEY = StepKey(1, "1" * 32, 0)


def test_nothing_is_written_into_an_empty_mount_point(level: PersistentLevel, tmp_path: Path) -> None:
    (tmp_path / LINEAGE_NAME).unlink()
    with pytest.raises(StorageError, match="lost its lineage record") as caught:
        level.open_part(attempt(1, ranks=1), 0)
    assert caught.value.errno == errno.ENOENT and caught.value.where == str(tmp_path / LINEAGE_NAME)
    assert "mounted" in str(caught.value.todo) and os.listdir(tmp_path) == []
    (tmp_path / LINEAGE_NAME).write_text("{}")
    level.open_part(attempt(1, ranks=1), 0).abort()


def test_a_commit_replaces_nothing(level: PersistentLevel, tmp_path: Path) -> None:
    key = commit(tmp_path, 1)
    before = manifest_file(tmp_path, key).read_bytes()
    with pytest.raises(StorageError) as caught:
        level.commit(key, b"another")
    assert caught.value.errno == errno.EEXIST
    assert manifest_file(tmp_path, key).read_bytes() == before
    assert os.listdir(step_directory(tmp_path, key)) == ["manifest"], "nor is anything left beside it"


def test_a_step_that_has_no_directory_any_more_is_not_committed(level: PersistentLevel, tmp_path: Path) -> None:
    """Another job has removed it: a manifest without parts must not be made."""
    with pytest.raises(StorageError) as caught:
        level.commit(KEY, b"manifest")
    assert caught.value.errno == errno.ENOENT and list_steps(PosixStore(tmp_path)) == []


def test_what_cannot_be_told_may_be_committed(level: PersistentLevel, tmp_path: Path) -> None:
    """So it is not removed."""
    begun(tmp_path, 1)
    with StorageFaults(tmp_path) as faults:
        faults.refuse(0, errno.EIO, only=("stat",))
        assert level.may_be_committed(KEY)
    assert not level.may_be_committed(KEY) and not level.may_be_committed(StepKey(2, "1" * 32, 0))


def config(directory: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(directory), **{"timeout": 20.0, **settings})


@pytest.mark.filterwarnings("ignore::deeppart.errors.BackgroundFailureWarning")  # of removals, if they come so late
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("moment", ["before the manifest", "after it"])
@pytest.mark.parametrize("refused", [False, True], ids=["withdrawn", "cannot be withdrawn"])
def test_a_takeover_between_the_check_and_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, refused: bool
) -> None:
    """A commit that the next job has not seen is taken back; one that it has seen stands. Each is whole or gone."""

    def no_locks(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    def commit(level: PersistentLevel, key: Any, manifest: bytes) -> None:
        if key.step == 2 and moment == "before the manifest":
            others.append(DirectoryOwner(tmp_path, "job 99, process 5 on node7"))
        real_commit(level, key, manifest)
        if key.step == 2 and moment == "after it":
            others.append(DirectoryOwner(tmp_path, "job 99, process 5 on node7"))

    def remove(folder: access.Folder, name: str) -> None:
        if refused and name == "manifest":
            raise OSError(errno.EIO, "refused", name)
        real_remove(folder, name)

    others: list[DirectoryOwner] = []
    real_commit, real_remove = PersistentLevel.commit, access.Folder.remove
    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(PersistentLevel, "commit", commit)
    monkeypatch.setattr(access.Folder, "remove", remove)
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        ck.checkpoint({"a": 1}, 1).wait(timeout=200)
        pending = ck.checkpoint({"a": 2}, 2)
        stands = moment == "after it"
        if stands:
            pending.wait(timeout=200)
        else:
            with pytest.raises(
                CheckpointError, match="cannot withdraw a commit" if refused else "taken this directory"
            ):
                pending.wait(timeout=200)
        with pytest.raises(CheckpointError, match="job 99, process 5 on node7"):
            ck.checkpoint({"a": 3}, 3).wait(timeout=200)
    others[0].close()
    left = sorted(path.parent.name[:17] for path in tmp_path.glob("step-*/manifest"))
    committed = ["step-000000000001", "step-000000000002"] if stands or refused else ["step-000000000001"]
    assert left == committed
    assert deeppart.load(tmp_path)["a"] == len(committed)
