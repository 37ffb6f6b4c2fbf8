"""Whose a directory is, as the commands tell it."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path

import pytest

import deeppart
from deeppart.storage import LOCK_NAME, hold_directory, read_owner
from tests.unit.cli_support import call, call_json, four_steps, save, steps_on_disk


def test_owner(tmp_path: Path) -> None:
    assert read_owner(tmp_path) is None
    config = deeppart.Config(persistent_dir=str(tmp_path))
    with deeppart.Checkpointer(config) as checkpointer:
        checkpointer.checkpoint({"x": 1}, step=1).wait("persistent", timeout=200)
        owner = call_json("ls", tmp_path)["owner"]
        assert owner["running"] is True
        assert f"process {os.getpid()}" in owner["who"]
        assert f"in use by {owner['who']}" in call("ls", tmp_path)
        checkpointer.checkpoint({"x": 1}, step=2).wait("persistent", timeout=200)  # asking has not hurt the job
    ended = call_json("ls", tmp_path)["owner"]
    assert ended == {**owner, "running": False}
    assert "in use" not in call("ls", tmp_path)
    with deeppart.Checkpointer(config):
        pass  # nor does it keep the next one out


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return four_steps(tmp_path)


def test_a_job_cannot_start_during_a_prune_and_nothing_recorded_changes(tmp_path: Path) -> None:
    save(tmp_path, 1)
    before, owner = (tmp_path / LOCK_NAME).read_bytes(), read_owner(tmp_path)
    with hold_directory(tmp_path), pytest.raises(deeppart.errors.DirectoryInUseError):
        deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path)))
    assert (tmp_path / LOCK_NAME).read_bytes() == before
    assert read_owner(tmp_path) == owner
    save(tmp_path, 2)


def test_the_instant_in_which_another_command_looks_is_waited_out(root: Path) -> None:
    """`deeppart ls` shares the lock for microseconds; that is no running job."""
    descriptor = os.open(root / LOCK_NAME, os.O_RDONLY | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    threading.Timer(0.1, os.close, [descriptor]).start()
    call("prune", root, "--keep", "1", "--yes")
    assert steps_on_disk(root) == [40]


def test_file_systems_without_locks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert "use --no-lock" in call("prune", root, "--keep", "1", "--yes", code=2)
    assert "would need --no-lock: the directory is perhaps" in call("prune", root, "--keep", "1", "--dry-run")
    assert steps_on_disk(root) == [10, 20, 30, 40]
    call("prune", root, "--keep", "1", "--yes", "--no-lock")
    assert steps_on_disk(root) == [40]


def test_no_lock_is_no_way_around_a_job(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path))):
        call("prune", tmp_path, "--keep", "1", "--yes", "--no-lock", code=2)
