"""The persistent level and its owner: locks, takeovers, and who may commit."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.errors import DirectoryInUseError
from deeppart.storage import DirectoryOwner

pytestmark = pytest.mark.usefixtures("impatient")


def config(directory: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(directory), **{"timeout": 20.0, **settings})


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
