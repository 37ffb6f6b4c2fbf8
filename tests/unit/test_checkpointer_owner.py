"""One job at a time on a directory: locks, takeovers, and who may commit."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import CheckpointError, DirectoryInUseError, LaunchError, RestoreError
from deeppart.storage import LOCK_NAME, DirectoryOwner, persistent
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("impatient")


def config(directory: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(directory), **{"timeout": 20.0, **settings})


def test_two_in_one_process(tmp_path: Path) -> None:
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        for _ in range(2):
            with pytest.raises(DirectoryInUseError, match=f"already[^$]*process {os.getpid()}[^$]*or close that"):
                deeppart.Checkpointer(config(tmp_path))
        ck.checkpoint({"a": 1}, 1).wait(timeout=200)  # the refused one has not damaged anything
        with deeppart.Checkpointer(config(tmp_path / "other")) as other:
            other.checkpoint({"a": 2}, 1).wait(timeout=200)
    deeppart.Checkpointer(config(tmp_path)).close()


def test_the_same_directory_by_another_name(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with deeppart.Checkpointer(config(tmp_path / "real")):
        for name in ("link", "real/../real", "real/"):
            with pytest.raises(DirectoryInUseError):
                deeppart.Checkpointer(config(tmp_path / name))


def test_a_refused_start_leaves_no_lock_and_no_thread(tmp_path: Path) -> None:
    """Whatever goes wrong after the lock is taken gives it back."""
    (tmp_path / "file").write_text("x")
    before = set(threading.enumerate())  # of tests before; some may end meanwhile
    for settings in ({"local_dir": str(tmp_path / "file")}, {"local_dir": "$NOT_SET_ANYWHERE/x"}):
        with pytest.raises(deeppart.DeeppartError):
            deeppart.Checkpointer(config(tmp_path / "ckpt", **settings))
        deeppart.Checkpointer(config(tmp_path / "ckpt")).close()
    assert set(threading.enumerate()) <= before


def test_a_takeover_is_noticed_at_the_commit(tmp_path: Path) -> None:
    """On a file system whose locks do not reach other nodes: the lock file names another session."""
    with deeppart.Checkpointer(config(tmp_path, local_dir=str(tmp_path / "l"), keep={"persistent": 1})) as ck:
        ck.checkpoint({"a": 1}, 1).wait(timeout=200)
        ours = (tmp_path / LOCK_NAME).read_bytes()
        theirs = {"session": "f" * 32, "who": "job 99, process 5 on node7", "since": "2030-01-01"}
        (tmp_path / LOCK_NAME).write_text(json.dumps(theirs))
        pending = ck.checkpoint({"a": 2}, 2)
        pending.wait("local", timeout=200)
        with pytest.raises(CheckpointError) as caught:
            pending.wait("persistent", timeout=200)
        assert "job 99, process 5 on node7" in str(caught.value) and "taken this directory over" in str(caught.value)
        assert deeppart.load(tmp_path)["a"] == 1 and not list(tmp_path.glob("step-000000000002-*/manifest"))
        contents = (b"", b"[]", b"\xff", b"null", b'{"session": null}', b"[" * 50_000)
        for step, content in enumerate(contents, start=3):
            (tmp_path / LOCK_NAME).write_bytes(content)
            with pytest.raises(CheckpointError, match="taken this directory over"):
                ck.checkpoint({"a": step}, step).wait("persistent", timeout=200)
        (tmp_path / LOCK_NAME).write_bytes(b"[" * 100_000)
        with pytest.raises(CheckpointError, match=r"lock file is not one of this library.*\n.*too long"):
            ck.checkpoint({"a": 19}, 19).wait("persistent", timeout=200)
        (tmp_path / LOCK_NAME).write_bytes(ours)
        ck.checkpoint({"a": 20}, 20).wait("persistent", timeout=200)
        wait_until(lambda: len(list(tmp_path.glob("step-*"))) == 1)  # what is removed afterwards needs the lock file
        (tmp_path / LOCK_NAME).unlink()
        with pytest.raises(CheckpointError, match="lost its lock file"):
            ck.checkpoint({"a": 21}, 21).wait("persistent", timeout=200)
        (tmp_path / LOCK_NAME).write_bytes(ours)  # which others can lock
        with pytest.raises(CheckpointError, match="another file with the same text"):
            ck.checkpoint({"a": 22}, 22).wait("persistent", timeout=200)
    assert deeppart.load(tmp_path)["a"] == 20


def test_a_directory_that_is_away_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    ours, away, live = tmp_path / "ckpt", tmp_path / "away", {"a": 0}
    # A status file that is due while the directory is away warns: tests/unit/telemetry.
    with deeppart.Checkpointer(config(ours, status="none")) as ck:
        ck.checkpoint({"a": 1}, 1).wait(timeout=200)
        ours.rename(away)
        for mount_point in (False, True):
            if mount_point:
                ours.mkdir()
            with pytest.raises(RestoreError, match="lost its lineage record"):
                ck.restore(live)
        ours.rmdir()
        away.rename(ours)
        assert ck.restore(live) == 1 and live == {"a": 1}


def test_no_commit_in_a_copy_that_takes_the_place_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a directory is moved to another file system under a job: the copy lacks what was written meanwhile."""
    ours, copy, old = tmp_path / "ckpt", tmp_path / "copy", tmp_path / "old"
    open_part = persistent.PersistentLevel.open_part

    def opened(self: persistent.PersistentLevel, attempt: Any, rank: int) -> Any:
        file = open_part(self, attempt, rank)
        if attempt.step == 2:
            shutil.copytree(ours, copy)
            copies.append(file)
        return file

    def commit(self: persistent.PersistentLevel, key: Any, manifest: bytes) -> None:
        if key.step == 2 and moment == "after the check":
            exchange()
        put(self, key, manifest)

    def exchange() -> None:
        ours.rename(old)
        copy.rename(ours)

    put, check = persistent.PersistentLevel.commit, DirectoryOwner.check

    def checked(self: DirectoryOwner) -> None:
        if copies and moment == "before the check" and copy.exists():
            exchange()
        check(self)

    monkeypatch.setattr(persistent.PersistentLevel, "open_part", opened)
    monkeypatch.setattr(persistent.PersistentLevel, "commit", commit)
    monkeypatch.setattr(DirectoryOwner, "check", checked)
    for moment in ("before the check", "after the check"):
        copies: list[Any] = []
        with deeppart.Checkpointer(config(ours, keep={"persistent": 1})) as ck:
            ck.checkpoint({"a": torch.ones(1000)}, 1).wait(timeout=200)
            with pytest.raises(CheckpointError, match="another directory lies where this job's persistent_dir was"):
                ck.checkpoint({"a": torch.zeros(1000)}, 2).wait("persistent", timeout=200)
        with pytest.warns(deeppart.DeeppartWarning, match="is a copy"), deeppart.Checkpointer(config(ours)) as ck:
            state = {"a": torch.zeros(1000)}
            assert ck.restore(state) == 1 and torch.equal(state["a"], torch.ones(1000)), moment
        shutil.rmtree(ours)
        shutil.rmtree(old)


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"RANK": "2", "WORLD_SIZE": "4"}, "MASTER_ADDR and MASTER_PORT"),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}, "scontrol show hostnames"),
    ],
)
def test_several_processes_that_cannot_meet_never_act_as_several_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], text: str
) -> None:
    """Four processes and nothing between them: an error that says what to set, not four jobs on one directory."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match="4 processes, but nothing tells how they reach each other") as caught:
        deeppart.Checkpointer(config(tmp_path))
    assert text in str(caught.value) and "process 2" in str(caught.value)
    for name, value in zip(variables, ("0", "1"), strict=True):
        monkeypatch.setenv(name, value)
    deeppart.Checkpointer(config(tmp_path)).close()


def test_what_is_no_communicator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="`comm` is not a communicator") as caught:
        deeppart.Checkpointer(config(tmp_path), comm="gloo")
    assert "found: str" in str(caught.value)
