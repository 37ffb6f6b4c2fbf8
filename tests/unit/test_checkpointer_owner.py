"""One job at a time on a directory: locks, takeovers, and who may commit."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart import access
from deeppart.errors import (
    BackgroundFailureWarning,
    CheckpointError,
    DirectoryInUseError,
    LaunchError,
)
from deeppart.storage import persistent
from deeppart.storage.lineage import LOCK_NAME
from deeppart.storage.persistent import DirectoryOwner

HOLDER = """
    import sys, deeppart
    ck = deeppart.Checkpointer(deeppart.Config(persistent_dir=sys.argv[1], timeout=20))
    print("holding", flush=True)
    sys.stdin.readline()
    ck.close()
"""


def config(directory: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(directory), **{"timeout": 20.0, **settings})


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent, "_LOCK_PATIENCE_S", 0.05)


def hold(directory: Path) -> subprocess.Popen[str]:
    job = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert job.stdout is not None and job.stdout.readline() == "holding\n"
    return job


def test_another_process_is_named_and_its_death_frees_the_directory(tmp_path: Path) -> None:
    job = hold(tmp_path)
    with pytest.raises(DirectoryInUseError) as caught:
        deeppart.Checkpointer(config(tmp_path))
    assert f"process {job.pid} on {os.uname().nodename}" in str(caught.value) and str(tmp_path) in str(caught.value)
    job.send_signal(signal.SIGKILL)
    job.communicate(timeout=300)
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        ck.checkpoint({"a": 1}, 1).wait(timeout=200)
    job = hold(tmp_path)
    job.communicate("go\n", timeout=300)
    assert job.returncode == 0
    deeppart.Checkpointer(config(tmp_path)).close()


@pytest.mark.parametrize(("number", "named"), [("", ""), ("4711", "job 4711, ")])
def test_the_job_is_named_where_it_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str, named: str
) -> None:
    for variable in ("PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", number)
    with deeppart.Checkpointer(config(tmp_path)):
        with pytest.raises(DirectoryInUseError) as caught:
            deeppart.Checkpointer(config(tmp_path))
    assert str(caught.value.found).startswith(f"owned by {named}process {os.getpid()} on ")


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
    before = threading.active_count()
    for settings in ({"local_dir": str(tmp_path / "file")}, {"local_dir": "$NOT_SET_ANYWHERE/x"}):
        with pytest.raises(deeppart.DeeppartError):
            deeppart.Checkpointer(config(tmp_path / "ckpt", **settings))
        deeppart.Checkpointer(config(tmp_path / "ckpt")).close()
    assert threading.active_count() == before


def test_a_takeover_is_noticed_at_the_commit(tmp_path: Path) -> None:
    """On a file system whose locks do not reach other nodes: the lock file names another session."""
    with deeppart.Checkpointer(config(tmp_path, local_dir=str(tmp_path / "l"))) as ck:
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
        deadline = time.monotonic() + 20  # what is removed afterwards needs the lock file
        while len(list(tmp_path.glob("step-*"))) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        (tmp_path / LOCK_NAME).unlink()
        with pytest.raises(CheckpointError, match="lost its lock file"):
            ck.checkpoint({"a": 21}, 21).wait("persistent", timeout=200)
        (tmp_path / LOCK_NAME).write_bytes(ours)  # which others can lock
        with pytest.raises(CheckpointError, match="another file with the same text"):
            ck.checkpoint({"a": 22}, 22).wait("persistent", timeout=200)
    assert deeppart.load(tmp_path)["a"] == 20


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


@pytest.mark.parametrize("moment", ["before the manifest", "after it"])
@pytest.mark.parametrize("refused", [False, True], ids=["withdrawn", "cannot be withdrawn"])
def test_a_takeover_between_the_check_and_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, refused: bool
) -> None:
    """A commit that the next job has not seen is taken back; one that it has seen stands. Each is whole or gone."""

    def no_locks(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    def commit(level: persistent.PersistentLevel, key: Any, manifest: bytes) -> None:
        if key.step == 2 and moment == "before the manifest":
            others.append(DirectoryOwner(tmp_path, "job 99, process 5 on node7"))
        real_commit(level, key, manifest)
        if key.step == 2 and moment == "after it":
            others.append(DirectoryOwner(tmp_path, "job 99, process 5 on node7"))

    def remove(path: Path) -> None:
        if refused and path.name == "manifest":
            raise OSError(errno.EIO, "refused", str(path))
        real_remove(path)

    others: list[DirectoryOwner] = []
    real_commit, real_remove = persistent.PersistentLevel.commit, access.remove
    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(persistent.PersistentLevel, "commit", commit)
    monkeypatch.setattr(access, "remove", remove)
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        ck.checkpoint({"a": 1}, 1).wait(timeout=200)
        pending = ck.checkpoint({"a": 2}, 2)
        stands = moment == "after it"
        if stands:
            pending.wait(timeout=200)
        else:
            with pytest.raises(
                CheckpointError, match="cannot take a commit back" if refused else "taken this directory"
            ):
                pending.wait(timeout=200)
        with pytest.raises(CheckpointError, match="job 99, process 5 on node7"):
            ck.checkpoint({"a": 3}, 3).wait(timeout=200)
    others[0].close()
    left = sorted(path.parent.name[:17] for path in tmp_path.glob("step-*/manifest"))
    committed = ["step-000000000001", "step-000000000002"] if stands or refused else ["step-000000000001"]
    assert left == committed
    assert deeppart.load(tmp_path)["a"] == len(committed)


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check at the commit must do: the later one goes on, the earlier one commits nothing more."""

    def no_locks(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.warns(BackgroundFailureWarning, match="taken this directory over"):
        with deeppart.Checkpointer(config(tmp_path)) as early:
            early.checkpoint({"a": 1}, 1).wait(timeout=200)
            with deeppart.Checkpointer(config(tmp_path)) as late:
                refused = early.checkpoint({"a": 2}, 2)
                late.checkpoint({"a": 3}, 3).wait(timeout=200)
                while not refused.finished:
                    pass
    assert deeppart.load(tmp_path)["a"] == 3


@pytest.mark.parametrize("code", ["EACCES", "EIO", "ENOSPC"])
def test_a_lock_that_is_refused_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(getattr(errno, code), "refused")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(deeppart.StorageError, match="not writable"):
        DirectoryOwner(tmp_path, "me")


def test_the_lineage_stays_and_sessions_change(tmp_path: Path) -> None:
    seen = set()
    for _ in range(2):
        owner = DirectoryOwner(tmp_path, "me")
        seen.add((owner.lineage, owner.session))
        owner.check()
        owner.close()
        owner.close()
    assert len({lineage for lineage, _ in seen}) == 1 and len({session for _, session in seen}) == 2


def test_several_processes_without_mpi_never_act_as_several_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun with four processes and no MPI between them: an error, not four jobs on one directory."""
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(LaunchError, match="torchrun started 4 processes"):
        deeppart.Checkpointer(config(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    deeppart.Checkpointer(config(tmp_path)).close()


def test_a_communicator_of_ones_own(tmp_path: Path) -> None:
    from deeppart.comm import SingleComm

    with deeppart.Checkpointer(config(tmp_path), comm=SingleComm()) as ck:
        ck.checkpoint({"a": torch.ones(2)}, 1).wait(timeout=200)
        assert ck.restore({"a": torch.zeros(2)}) == 1
