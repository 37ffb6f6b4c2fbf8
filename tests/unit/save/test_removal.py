"""Old steps go beside what is saved next: who removes slowly holds up nobody, but for who needs the space."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.comm.base import Comm
from deeppart.comm.waiting import finish
from deeppart.errors import BackgroundFailureWarning, CheckpointError, StorageError
from deeppart.model import StepKey
from deeppart.save.job import Progress
from deeppart.save.retention import Retention
from deeppart.storage.persistent import PersistentLevel
from tests.unit.cli_support import steps_in
from tests.unit.sharded_states import checkpointer, on_ranks

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


def test_nodes_keep_no_more_because_of_it(tmp_path: Path, slow: SlowRemoval) -> None:
    """A step whose removal is under way needs none of its files on nodes any more."""
    with deeppart.Checkpointer(
        persistent_dir=tmp_path / "ckpt", local_dir=tmp_path / "local", keep={"persistent": 1, "local": 1}
    ) as ck:
        for step in (1, 2, 3):
            assert ck._pipeline.wait_for_room(PATIENCE_S)
            ck.checkpoint(STATE, step).wait(timeout=PATIENCE_S)
        ends = time.monotonic() + PATIENCE_S / 2  # a thread removes them, while removals of steps wait
        while len(parts := list((tmp_path / "local").glob("*/step-*/part-*"))) != 1 and time.monotonic() < ends:
            time.sleep(0.01)
        assert len(parts) == 1 and not slow.go_on.is_set()
        slow.go_on.set()


def test_a_level_that_is_complete_needs_no_files_while_what_it_replaces_goes() -> None:
    progress = Progress(["local", "persistent"])
    progress.complete("persistent")
    assert progress.needs() and not progress.needs("local")
    assert not progress.settle("local") and not progress.needs()
    assert progress.settle("persistent")


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


def refuse_once(monkeypatch: pytest.MonkeyPatch, name: str, happens: Callable[[], None], rank: int = 0) -> list[int]:
    """Have the next call of an operation of the persistent level find no space, for one rank."""
    operation, refused = getattr(PersistentLevel, name), list[int]()

    def full(self: PersistentLevel, *what: Any) -> Any:
        if not refused and (name != "open_part" or what[1] == rank):
            refused.append(1)
            happens()
            raise StorageError("no space", errno=errno.ENOSPC)
        return operation(self, *what)

    monkeypatch.setattr(PersistentLevel, name, full)
    return refused


def test_what_has_gone_while_the_space_was_asked_for_counts(
    tmp_path: Path, slow: SlowRemoval, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes time to give a long part up; the removal may end meanwhile."""
    with opened(tmp_path) as ck:
        for step in (1, 2):
            ck.checkpoint(STATE, step).wait("persistent", PATIENCE_S)

        def end() -> None:
            slow.go_on.set()
            while ck._pipeline.removing:
                time.sleep(0.001)

        refused = refuse_once(monkeypatch, "open_part", end)
        pending = ck.checkpoint(STATE, 3)
        pending.wait("persistent", PATIENCE_S)
    assert refused == [1] and pending.report.retries == 1 and steps_in(tmp_path) == [3]


def test_a_manifest_has_the_same_patience(tmp_path: Path, slow: SlowRemoval, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as ck:
        for step in (1, 2):
            ck.checkpoint(STATE, step).wait("persistent", PATIENCE_S)
        refused = refuse_once(monkeypatch, "commit", slow.go_on.set)
        ck.checkpoint(STATE, 3).wait("persistent", PATIENCE_S)
    assert refused == [1] and steps_in(tmp_path) == [3]


@pytest.mark.parametrize("committed", [(1, 2), ()])
def test_other_ranks_try_again_once_anything_may_have_been_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: tuple[int, ...]
) -> None:
    """They do not know of removals, nor wait for them by name."""
    refused: list[list[int]] = []

    def saved(comm: Comm) -> str:
        with checkpointer(tmp_path, comm, keep={"persistent": 1}) as ck:
            for step in committed:
                ck.checkpoint(STATE, step).wait("persistent", PATIENCE_S)
            if comm.rank == 0:
                refused.append(refuse_once(monkeypatch, "open_part", lambda: None, rank=1))
            comm_barrier(comm)
            try:
                ck.checkpoint(STATE, 3).wait("persistent", PATIENCE_S)
            except CheckpointError as error:
                return str(error)
            return ""

    told = on_ranks(2, saved)
    assert refused == [[1]]
    assert all(text == "" if committed else "no space" in text for text in told)


def comm_barrier(comm: Comm) -> None:
    finish(comm, comm.maximum(np.zeros(1, dtype=np.int64)), "a barrier", PATIENCE_S)


def test_who_is_overtaken_in_the_middle_removes_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with deeppart.Checkpointer(persistent_dir=tmp_path, keep={"persistent": 9}, incremental=False) as ck:
        for step in range(1, 5):
            ck.checkpoint(STATE, step).wait("persistent", PATIENCE_S)
    remove, gone = PersistentLevel.remove, list[int]()

    def overtaken(self: PersistentLevel, keys: set[StepKey]) -> None:
        remove(self, keys)
        gone.extend(key.step for key in keys)
        (tmp_path / ".deeppart.lock").unlink()

    monkeypatch.setattr(PersistentLevel, "remove", overtaken)
    with pytest.warns(BackgroundFailureWarning), opened(tmp_path) as ck:
        assert ck.restore(dict(STATE)) == 4
        ck.checkpoint(STATE, 5).wait("persistent", PATIENCE_S)
    assert gone == [1] and steps_in(tmp_path) == [2, 3, 4, 5]


def test_where_there_is_no_space_and_nothing_goes_the_level_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 1 replaces nothing: that its removals end only after the space was asked for makes no room."""
    calls: list[int] = []
    asked, remove_old = threading.Event(), Retention.remove_old

    def full(self: PersistentLevel, *what: object) -> object:
        calls.append(1)
        asked.set()
        raise StorageError("no space", errno=errno.ENOSPC)

    def late(self: Retention, newest: StepKey) -> list[str]:
        assert asked.wait(PATIENCE_S)
        return remove_old(self, newest)

    monkeypatch.setattr(Retention, "remove_old", late)
    with opened(tmp_path) as ck:
        ck.checkpoint(STATE, 1).wait("persistent", PATIENCE_S)
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
