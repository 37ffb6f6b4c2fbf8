"""Old steps go beside what is saved next: who removes slowly holds up nobody, but for who needs the space."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

import deeppart
from deeppart.errors import BackgroundFailureWarning, CheckpointError, StorageError
from deeppart.model import StepKey
from deeppart.storage.persistent import PersistentLevel
from tests.unit.cli_support import steps_in

PATIENCE_S = 60.0


@dataclass
class SlowRemoval:
    """A file system on which every removal of steps waits until it may go on."""

    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    failure: StorageError | None = None


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowRemoval]:
    found, remove = SlowRemoval(), PersistentLevel.remove

    def slowly(self: PersistentLevel, keys: set[StepKey]) -> None:
        found.begun.set()
        assert found.go_on.wait(PATIENCE_S)
        if found.failure is not None:
            raise found.failure
        remove(self, keys)

    monkeypatch.setattr(PersistentLevel, "remove", slowly)
    yield found
    found.go_on.set()


def opened(root: Path) -> deeppart.Checkpointer:
    keep = {"persistent": 1}
    return deeppart.Checkpointer(persistent_dir=root, keep=keep, timeout=PATIENCE_S, incremental=False)


STATE = {"x": torch.arange(1000.0)}


def test_the_next_checkpoint_is_committed_while_an_old_step_is_being_removed(tmp_path: Path, slow: SlowRemoval) -> None:
    with opened(tmp_path) as ck:
        for step in (1, 2):
            ck.checkpoint(STATE, step).wait("persistent", PATIENCE_S)
        assert slow.begun.wait(PATIENCE_S)
        ck.checkpoint(STATE, 3).wait("persistent", PATIENCE_S)
        assert steps_in(tmp_path) == [1, 2, 3], "all that are committed; nothing has been removed yet"
        slow.go_on.set()
    assert steps_in(tmp_path) == [3]


def test_no_more_steps_wait_to_be_removed_than_checkpoints_may_be_in_flight(tmp_path: Path, slow: SlowRemoval) -> None:
    with opened(tmp_path) as ck:
        for step in (1, 2, 3):
            assert ck._pipeline.wait_for_room(PATIENCE_S)
            ck.checkpoint(STATE, step).wait("persistent", PATIENCE_S)
        assert not ck._pipeline.has_room(), "2 waits until 1 has gone, 3 until 2 has"
        slow.go_on.set()
        assert ck._pipeline.wait_for_room(PATIENCE_S)
    assert steps_in(tmp_path) == [3]


def test_where_there_is_no_space_what_is_being_removed_is_waited_for(
    tmp_path: Path, slow: SlowRemoval, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`keep` + 1 checkpoints have to have room, and no more."""
    open_part = PersistentLevel.open_part
    refused: list[int] = []

    def full(self: PersistentLevel, *what: object) -> object:
        if len(steps_in(tmp_path)) == 2:
            refused.append(1)
            slow.go_on.set()
            raise StorageError("no space", errno=errno.ENOSPC)
        return open_part(self, *what)  # type: ignore[arg-type]

    with opened(tmp_path) as ck:
        for step in (1, 2):
            ck.checkpoint(STATE, step).wait("persistent", PATIENCE_S)
        assert slow.begun.wait(PATIENCE_S)
        monkeypatch.setattr(PersistentLevel, "open_part", full)
        ck.checkpoint(STATE, 3).wait("persistent", PATIENCE_S)
    assert refused == [1] and steps_in(tmp_path) == [3]


def test_where_there_is_no_space_and_nothing_goes_the_level_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def full(self: PersistentLevel, *what: object) -> object:
        calls.append(1)
        raise StorageError("no space", errno=errno.ENOSPC)

    with opened(tmp_path) as ck:
        ck.checkpoint(STATE, 1).wait("persistent", PATIENCE_S)
        ck._pipeline.wait_until_idle(PATIENCE_S)
        monkeypatch.setattr(PersistentLevel, "open_part", full)
        pending = ck.checkpoint(STATE, 2)
        with pytest.raises(CheckpointError, match="no space"):
            pending.wait("persistent", PATIENCE_S)
    assert calls == [1] and steps_in(tmp_path) == [1]


def test_a_removal_that_is_refused_is_told_and_the_commit_stands(tmp_path: Path, slow: SlowRemoval) -> None:
    slow.failure = StorageError("cannot remove an old checkpoint", errno=errno.EACCES)
    slow.go_on.set()
    text = "step 2 is complete at level 'persistent', but steps that"
    with pytest.warns(BackgroundFailureWarning, match=text), opened(tmp_path) as ck:
        for step in (1, 2):
            pending = ck.checkpoint(STATE, step)
            pending.wait("persistent", PATIENCE_S)
        ck._pipeline.wait_until_idle(PATIENCE_S)
        assert "cannot remove" in str(pending.report.retire_error)
    assert steps_in(tmp_path) == [1, 2]
