"""The persistent level and its owner: locks, takeovers, and who may commit."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.errors import DirectoryInUseError, StorageError
from deeppart.part import Signing
from deeppart.storage import DirectoryOwner, PosixStore
from tests.unit.commits import FIRST, SECOND, commit, manifest_file

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


LATE = "2126-11-30T12:00:00.000000Z"


def test_commits_come_after_those_of_all_sessions_if_some_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest one is damaged, and of the others each read fails once."""
    commit(tmp_path, 1, FIRST, 0, created=LATE)
    damaged = manifest_file(tmp_path, commit(tmp_path, 2, FIRST, 1, created=LATE))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    commit(tmp_path, 3, SECOND, 0)
    get, failed = PosixStore.get, set[str]()

    def fails_once(store: PosixStore, name: str, *limit: int) -> bytes:
        if "manifest" in name and name not in failed:
            failed.add(name)
            raise StorageError("cannot read", errno=errno.EIO)
        return get(store, name, *limit)

    monkeypatch.setattr(PosixStore, "get", fails_once)
    owner = DirectoryOwner(tmp_path, "me")
    assert len(failed) == 3 and owner.clock.now() > LATE
    owner.close()


def test_unsigned_commits_set_no_clock_where_there_are_keys(tmp_path: Path) -> None:
    commit(tmp_path, 1, FIRST, 0, created=LATE)
    owner = DirectoryOwner(tmp_path, "me", signing=Signing([os.urandom(32)]))
    assert owner.clock.now() < LATE
    owner.close()


@pytest.mark.parametrize("code", ["EACCES", "EIO", "ENOSPC"])
def test_a_lock_that_is_refused_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(getattr(errno, code), "refused")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(deeppart.errors.StorageError, match="not writable"):
        DirectoryOwner(tmp_path, "me")
