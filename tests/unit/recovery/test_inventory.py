"""A process that lacks files, memory or threads stops a restore, on all ranks, instead of an older step being taken."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.errors import RestoreError, StorageError
from deeppart.part import FileSource
from deeppart.recovery import CheckedPart, inventory
from deeppart.storage import manifests
from tests.unit.cli_support import make_state, save


def refused(*_: Any, **__: Any) -> Any:
    raise StorageError("cannot open a part file", errno=errno.EMFILE, found="this process may not open more than 7")


def restore(root: Path, local: Path) -> int | None:
    with deeppart.Checkpointer(persistent_dir=str(root), local_dir=str(local)) as checkpointer:
        return checkpointer.restore(make_state())


@pytest.mark.parametrize("where", ["manifests", "a node"])
def test_what_cannot_be_listed_now_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    save(root, 1, 2, local_dir=local)
    with monkeypatch.context() as patch:
        if where == "manifests":
            patch.setattr(manifests, "read_manifest", refused)
        else:
            patch.setattr(inventory, "take_stock", refused)
        with pytest.raises(RestoreError, match="cannot be listed") as caught:
            restore(root, local)
    assert "ulimit -n" in str(caught.value) and "rank 0" in str(caught.value)
    assert restore(root, local) == 2


def test_a_part_that_cannot_be_opened_now_does_not_lead_to_an_older_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    save(root, 1, 2)

    def opened(path: Path) -> FileSource:
        return refused() if "step-000000000002" in str(path) else FileSource(path)

    with monkeypatch.context() as patch:
        patch.setattr("deeppart.storage.posix.FileSource", opened)
        with pytest.raises(RestoreError, match="cannot be read") as caught:
            restore(root, local)
    assert "may not open more than 7" in str(caught.value) and "ulimit -n" in str(caught.value)
    assert restore(root, local) == 2


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_a_lack_of_memory_or_threads_does_not_lead_to_an_older_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    root, local = tmp_path / "p", tmp_path / "l"
    save(root, 1, 2)
    check = CheckedPart.check

    def checked(part: CheckedPart, *rest: Any) -> None:
        if part.reader.attempt.step == 2:
            raise error
        check(part, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(CheckedPart, "check", checked)
        with pytest.raises(RestoreError, match="cannot be read") as caught:
            restore(root, local)
    assert "memory" in str(caught.value) and "nothing is known to be wrong" in str(caught.value)
    assert restore(root, local) == 2
