"""The persistent level and its owner: locks, takeovers, and who may commit."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.errors import DirectoryInUseError
from deeppart.storage import DirectoryOwner

pytestmark = pytest.mark.usefixtures("impatient")

HOLDER = """
import sys, time, deeppart
ck = deeppart.Checkpointer(deeppart.Config(persistent_dir=sys.argv[1], timeout=20))
print("holding", flush=True)
time.sleep(300)
"""


def config(directory: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(directory), **{"timeout": 20.0, **settings})


def test_another_process_is_named_and_its_death_frees_the_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    assert job.stdout is not None and job.stdout.readline() == "holding\n"
    with pytest.raises(DirectoryInUseError) as caught:
        deeppart.Checkpointer(config(tmp_path))
    assert f"process {job.pid} on {os.uname().nodename}" in str(caught.value) and str(tmp_path) in str(caught.value)
    job.send_signal(signal.SIGKILL)
    job.communicate(timeout=300)
    with deeppart.Checkpointer(config(tmp_path)) as ck:
        ck.checkpoint({"a": 1}, 1).wait(timeout=200)


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


@pytest.mark.parametrize("code", ["EACCES", "EIO", "ENOSPC"])
def test_a_lock_that_is_refused_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(getattr(errno, code), "refused")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(deeppart.errors.StorageError, match="not writable"):
        DirectoryOwner(tmp_path, "me")
