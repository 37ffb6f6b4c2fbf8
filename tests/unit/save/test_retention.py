"""What is removed, and what does not wait for it."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest

import deeppart
from deeppart.model import StepKey
from deeppart.save.retention import Retention
from deeppart.storage.node import NodeLevel
from deeppart.storage.persistent import PersistentLevel
from deeppart.storage.steps import list_steps, step_directory
from tests.unit.cli_support import steps_in

PATIENCE_S = 200.0
SESSION = "b" * 32


def test_a_file_system_that_removes_slowly_holds_up_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can take seconds."""
    begun, go_on = threading.Event(), threading.Event()
    old = StepKey(1, "a" * 32, 0)
    step_directory(tmp_path, old).mkdir()

    def slow(self: PersistentLevel, keys: set[StepKey]) -> None:
        assert keys == {old}
        begun.set()
        assert go_on.wait(PATIENCE_S)

    monkeypatch.setattr(PersistentLevel, "remove", slow)
    levels = ("local", "persistent")
    every, keep = dict.fromkeys(levels, 1), dict.fromkeys(levels, 1)
    retention = Retention({}, PersistentLevel(tmp_path), keep, every, {"local": set(), "persistent": {old}})
    slowly = threading.Thread(target=retention.remove_old, args=(StepKey(2, "b" * 32, 0),))
    local = threading.Thread(target=retention.committed, args=("local", StepKey(3, "b" * 32, 1), set))
    slowly.start()
    assert begun.wait(PATIENCE_S)
    local.start()
    local.join(PATIENCE_S)
    assert not local.is_alive()
    go_on.set()
    slowly.join(PATIENCE_S)
    assert not slowly.is_alive()


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


def test_with_one_step_of_its_own_the_one_that_counts_stays(tmp_path: Path) -> None:
    config = deeppart.Config(persistent_dir=str(tmp_path), keep={"persistent": 2}, incremental=False)
    with deeppart.Checkpointer(config) as checkpointer:
        for step in (1, 2):
            checkpointer.checkpoint({"x": step}, step).wait(timeout=PATIENCE_S)
    for part in step_directory(tmp_path, newest_key(tmp_path)).glob("*.dpp"):
        part.write_bytes(part.read_bytes()[:-1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with deeppart.Checkpointer(config) as checkpointer:
            checkpointer.restore({"x": 0})
            checkpointer.checkpoint({"x": 3}, 3).wait(timeout=PATIENCE_S)
    assert 1 in steps_in(tmp_path) and 3 in steps_in(tmp_path), "two that can be restored"


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


def test_copies_of_an_earlier_run_keep_their_local_parts_while_copies_fail(tmp_path: Path) -> None:
    old = StepKey(1, "a" * 32, 0)
    retention, levels = on_a_node(tmp_path, "partner", earlier=old)
    for step in (2, 3, 4):
        save(retention, levels, "partner", step, fails=True)
        assert numbers(levels["local"]) == numbers(levels["partner"]) == {1, step}
    save(retention, levels, "partner", 5, fails=False)
    assert numbers(levels["local"]) == numbers(levels["partner"]) == {5}


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
            step_directory(node_level.root, key).mkdir()
    ones = dict.fromkeys(levels, 1)
    return Retention(levels, None, ones, ones, {name: set(found) for name in levels}), levels


def save(
    retention: Retention, levels: dict[str, NodeLevel], level: str, step: int, *, fails: bool, in_doubt: bool = False
) -> None:
    """A step that is complete at `local`, and at the redundant level unless it fails."""
    key = StepKey(step, SESSION, step)
    for node_level in levels.values():
        step_directory(node_level.root, key).mkdir()
    retention.committed("local", key, set)
    if fails:
        retention.abandon(level, key, [], in_doubt=in_doubt)
    else:
        retention.committed(level, key, set)


def numbers(level: NodeLevel) -> set[int]:
    return {key.step for key in level.steps()}


def newest_key(root: Path) -> StepKey:
    return list(list_steps(root))[-1]
