"""The persistent level and its owner: locks, takeovers, and who may commit."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.errors import (
    BackgroundFailureWarning,
    CheckpointError,
    DirectoryInUseError,
)
from deeppart.storage import owner as owner_module
from deeppart.storage import persistent
from deeppart.storage.owner import DirectoryOwner

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
    monkeypatch.setattr(owner_module, "_LOCK_PATIENCE_S", 0.05)


def hold(directory: Path) -> subprocess.Popen[str]:
    job = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
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
    real_commit, real_remove = persistent.PersistentLevel.commit, persistent.access.remove
    monkeypatch.setattr(owner_module.fcntl, "flock", no_locks)
    monkeypatch.setattr(persistent.PersistentLevel, "commit", commit)
    monkeypatch.setattr(persistent.access, "remove", remove)
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


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check at the commit must do: the later one goes on, the earlier one commits nothing more."""

    def no_locks(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(owner_module.fcntl, "flock", no_locks)
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

    monkeypatch.setattr(owner_module.fcntl, "flock", refuse)
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
