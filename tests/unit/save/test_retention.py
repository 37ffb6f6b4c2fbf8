"""Old steps go beside what is saved next: who removes slowly holds up nobody, but for who needs the space."""

from __future__ import annotations

import errno
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deeppart
from deeppart.comm import Comm, finish
from deeppart.errors import BackgroundFailureWarning, CheckpointError, StorageError
from deeppart.model import StepKey
from deeppart.part import step_name
from deeppart.save import Keeping, Retention
from deeppart.storage import NeededParts, NodeLevel, PersistentLevel
from tests.unit.cli_support import steps_in
from tests.unit.commits import newest_key, step_directory
from tests.unit.sharded_states import checkpointer, on_ranks
from tests.waiting import wait_until

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

    def slowly(self: PersistentLevel, key: StepKey, needed: NeededParts) -> bool:
        found.begun.set()
        assert found.go_on.wait(PATIENCE_S)
        if found.failure is not None:
            raise found.failure
        return remove(self, key, needed)

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


def test_nodes_keep_no_more_because_of_it(tmp_path: Path, slow: SlowRemoval) -> None:
    """A step whose removal is under way needs none of its files on nodes any more."""
    with deeppart.Checkpointer(
        persistent_dir=tmp_path / "ckpt", local_dir=tmp_path / "local", keep={"persistent": 1, "local": 1}
    ) as ck:
        for step in (1, 2, 3):
            assert ck._pipeline.wait_for_room(PATIENCE_S)
            ck.checkpoint(STATE, step).wait(timeout=PATIENCE_S)
        # A thread removes them, while removals of steps wait.
        wait_until(lambda: len(glob(f"{tmp_path}/local/*/step-*/part-*")) == 1, PATIENCE_S / 2)
        assert not slow.go_on.is_set()
        slow.go_on.set()


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


@pytest.mark.parametrize("operation", ["open_part", "commit"])
def test_where_there_is_no_space_what_is_being_removed_is_waited_for(
    tmp_path: Path, slow: SlowRemoval, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """For a part and for a manifest: `keep` + 1 checkpoints have to have room, and no more."""
    with opened(tmp_path) as ck:
        for step in (1, 2):
            ck.checkpoint(STATE, step).wait("persistent", PATIENCE_S)
        refused = refuse_once(monkeypatch, operation, slow.go_on.set)
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

    def overtaken(self: PersistentLevel, key: StepKey, needed: NeededParts) -> bool:
        is_gone = remove(self, key, needed)
        gone.append(key.step)
        (tmp_path / ".deeppart.lock").unlink()
        return is_gone

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
    asked, remove_old = threading.Event(), Keeping.remove_old

    def full(self: PersistentLevel, *what: object) -> object:
        calls.append(1)
        asked.set()
        raise StorageError("no space", errno=errno.ENOSPC)

    def late(self: Keeping, newest: StepKey) -> list[str]:
        assert asked.wait(PATIENCE_S)
        return remove_old(self, newest)

    monkeypatch.setattr(Keeping, "remove_old", late)
    with opened(tmp_path) as ck:
        ck.checkpoint(STATE, 1).wait("persistent", PATIENCE_S)
        monkeypatch.setattr(PersistentLevel, "open_part", full)
        pending = ck.checkpoint(STATE, 2)
        with pytest.raises(CheckpointError, match="no space"):
            pending.wait("persistent", PATIENCE_S)
    assert calls == [1] and steps_in(tmp_path) == [1]


SESSION = "b" * 32


@pytest.mark.parametrize("restores", [False, True])
def test_who_forgets_to_restore_does_not_lose_what_the_next_restore_takes(tmp_path: Path, restores: bool) -> None:
    """A run from scratch, in the directory of one that was far ahead; and one that went back on purpose."""
    config = deeppart.Config(persistent_dir=str(tmp_path), keep={"persistent": 2}, incremental=False)

    def run(*steps: int) -> None:
        with warnings.catch_warnings(), deeppart.Checkpointer(config) as checkpointer:
            warnings.simplefilter("ignore", deeppart.DeeppartWarning)
            if restores:
                checkpointer.restore({"x": 0})
            for step in steps:
                checkpointer.checkpoint({"x": step}, step).wait(timeout=PATIENCE_S)

    run(1000, 1001, 1002)
    run(1, 2, 3, 4)
    assert steps_in(tmp_path) == ([3, 4] if restores else [3, 4, 1001, 1002])
    run(5000, 5001)
    assert steps_in(tmp_path) == [5000, 5001]


def test_a_finished_job_that_saves_its_last_step_again_keeps_the_ones_before(tmp_path: Path) -> None:
    config = deeppart.Config(persistent_dir=str(tmp_path), keep={"persistent": 3}, incremental=False)
    with deeppart.Checkpointer(config) as checkpointer:
        for step in (5, 6, 7, 8):
            checkpointer.checkpoint({"x": step}, step).wait(timeout=PATIENCE_S)
    for times in range(3):  # submitted again, three times
        live = {"x": 0}
        with deeppart.Checkpointer(config) as checkpointer:
            assert checkpointer.restore(live) == 8
            for _ in range(times):
                checkpointer.checkpoint(live, 8, force=True).wait(timeout=PATIENCE_S)
        assert steps_in(tmp_path) == [6, 7, 8] and deeppart.load(tmp_path)["x"] == 8
    with deeppart.Checkpointer(config) as checkpointer:
        checkpointer.restore({"x": 0})
        checkpointer.checkpoint({"x": 9}, 9).wait(timeout=PATIENCE_S)
    assert steps_in(tmp_path) == [7, 8, 9]


def test_a_step_that_cannot_be_restored_does_not_count_and_that_is_told(tmp_path: Path) -> None:
    """``keep = 2``, and the newest step of the run before is damaged: the one before it takes its place."""
    config = deeppart.Config(persistent_dir=str(tmp_path), keep={"persistent": 2}, incremental=False)
    with deeppart.Checkpointer(config) as checkpointer:
        for step in (1, 2):
            checkpointer.checkpoint({"x": step}, step).wait(timeout=PATIENCE_S)
    for part in step_directory(tmp_path, newest_key(tmp_path)).glob("*.dpp"):
        part.write_bytes(part.read_bytes()[:-1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config) as checkpointer:
            assert checkpointer.restore({"x": 0}) == 1
            checkpointer.checkpoint({"x": 3}, 3).wait(timeout=PATIENCE_S)
            checkpointer.checkpoint({"x": 4}, 4).wait(timeout=PATIENCE_S)
    told = [str(each.message) for each in caught if each.category is deeppart.errors.KeepNotice]
    assert len(told) == 1 and "step 2 cannot be restored" in told[0] and "does not count for `keep`" in told[0]
    assert steps_in(tmp_path) == [3, 4]


@pytest.mark.parametrize("level", ["partner", "parity"])
@pytest.mark.parametrize("good", [0, 2], ids=["from-the-first-on", "later"])
def test_where_copies_fail_every_time_local_parts_do_not_pile_up(tmp_path: Path, level: str, good: int) -> None:
    """The last step that has copies stays with them, and the newest; nothing else."""
    retention, levels = on_a_node(tmp_path, level)
    for step in range(1, 9):
        save(retention, levels, level, step, fails=step > good)
        protected = {good} if good and step > good else set()
        assert numbers(levels["local"]) == {step} | protected
    assert numbers(levels[level]) == ({good, 8} if good else {8}), "of those before, not even an empty directory"


def test_a_step_in_doubt_at_a_level_keeps_its_local_parts(tmp_path: Path) -> None:
    """Other ranks may have heard that it is complete, and have removed what it replaces."""
    retention, levels = on_a_node(tmp_path, "partner")
    save(retention, levels, "partner", 1, fails=True, in_doubt=True)
    save(retention, levels, "partner", 2, fails=True)
    assert numbers(levels["local"]) == numbers(levels["partner"]) == {1, 2}


def on_a_node(directory: Path, level: str, earlier: StepKey | None = None) -> tuple[Retention, dict[str, NodeLevel]]:
    """What tidies a node up with `local` and one redundant level, each of which keeps one step."""
    levels = {name: NodeLevel(directory, "f" * 32, name, SESSION) for name in ("local", level)}
    found = set() if earlier is None else {earlier}
    for node_level in levels.values():
        for key in found:
            node_level.store.path(step_name(key)).mkdir()
    ones = dict.fromkeys(levels, 1)
    return Retention(levels, ones, ones, {name: set(found) for name in levels}), levels


def save(
    retention: Retention, levels: dict[str, NodeLevel], level: str, step: int, *, fails: bool, in_doubt: bool = False
) -> None:
    """A step that is complete at `local`, and at the redundant level unless it fails."""
    key = StepKey(step, SESSION, step)
    for node_level in levels.values():
        node_level.store.path(step_name(key)).mkdir()
    retention.committed("local", key, set)
    if fails:
        retention.abandon(level, key, in_doubt=in_doubt)
    else:
        retention.committed(level, key, set)


def numbers(level: NodeLevel) -> set[int]:
    return {key.step for key in level.steps()}
