"""The persistent level and its owner: locks, takeovers, and who may commit."""

from __future__ import annotations

import errno
import fcntl
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
    DirectoryInUseError,
)
from deeppart.storage import DirectoryOwner
from deeppart.storage import owner as owner_module

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


def test_a_later_start_of_the_same_job_does_not_wait_for_an_earlier_one(tmp_path: Path) -> None:
    """Whose process hangs with the lock; it commits nothing any more, and the later one gets the lock after its end."""
    first = DirectoryOwner(tmp_path, "first", epoch=("run", 1))
    for epoch in (None, ("run", 1), ("another run", 2)):
        with pytest.raises(DirectoryInUseError, match="already"):
            DirectoryOwner(tmp_path, "second", epoch=epoch)
    first.check()
    second = DirectoryOwner(tmp_path, "second", epoch=("run", 2))
    with pytest.raises(DirectoryInUseError, match="taken this directory over"):
        first.check()
    second.check()
    first.close()
    second.check()
    with pytest.raises(DirectoryInUseError):
        DirectoryOwner(tmp_path, "third")
    second.close()
    DirectoryOwner(tmp_path, "third").close()


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
    with pytest.raises(deeppart.errors.StorageError, match="not writable"):
        DirectoryOwner(tmp_path, "me")
