"""What is removed, and what does not wait for it."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.model import StepKey
from deeppart.save.retention import Retention
from deeppart.storage.keeping import Keeping
from deeppart.storage.persistent import PersistentLevel
from deeppart.storage.steps import list_steps, step_directory
from deeppart.storage.timestamps import CommitClock
from tests.unit.cli_support import steps_in

PATIENCE_S = 200.0


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
    slowly = threading.Thread(target=retention.committed, args=("persistent", StepKey(2, "b" * 32, 0), set))
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


@pytest.mark.parametrize("what", ["manifest", "part"])
def test_a_step_that_is_damaged_after_it_was_counted_counts_no_more(tmp_path: Path, what: str) -> None:
    """``keep = 3``: step 3 was sound when the first step of this session was committed, and not at the second."""
    config = deeppart.Config(persistent_dir=str(tmp_path), keep={"persistent": 3}, incremental=False)
    with deeppart.Checkpointer(config) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.checkpoint({"x": step}, step).wait(timeout=PATIENCE_S)
    third = step_directory(tmp_path, newest_key(tmp_path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config) as checkpointer:
            checkpointer.restore({"x": 0})
            checkpointer.checkpoint({"x": 4}, 4).wait(timeout=PATIENCE_S)
            wait_until(lambda: steps_in(tmp_path) == [2, 3, 4])
            if what == "part":
                (third / "part-00000-of-00001.dpp").unlink()
            else:
                (third / "manifest").write_bytes(b"damaged")
            checkpointer.checkpoint({"x": 5}, 5).wait(timeout=PATIENCE_S)
    assert steps_in(tmp_path) == [2, 3, 4, 5]
    told = [str(each.message) for each in caught if each.category is deeppart.errors.KeepNotice]
    assert len(told) == (what == "part")


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_directory_that_is_away_when_steps_are_counted_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not seen is not taken for unfinished, and removed when the directory is back."""
    root, elsewhere = tmp_path / "here", tmp_path / "away"
    config = deeppart.Config(persistent_dir=str(root), keep={"persistent": 3}, incremental=False)
    with deeppart.Checkpointer(config) as checkpointer:
        checkpointer.checkpoint({"x": 1}, 1).wait(timeout=PATIENCE_S)
    counted: list[Any] = []
    count = Keeping.removable

    def away(self: Keeping, abandoned: Collection[StepKey]) -> set[StepKey]:
        counted.append(len(counted))
        if counted[-1]:
            return count(self, abandoned)
        root.rename(elsewhere)
        try:
            return count(self, abandoned)
        finally:
            elsewhere.rename(root)

    monkeypatch.setattr(Keeping, "removable", away)
    with warnings.catch_warnings(), deeppart.Checkpointer(config) as checkpointer:
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        assert checkpointer.restore({"x": 0}) == 1
        for step in (2, 3):
            checkpointer.checkpoint({"x": step}, step).wait(timeout=PATIENCE_S)
    assert len(counted) == 2 and steps_in(root) == [1, 2, 3]


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


@pytest.mark.parametrize("hours", [-5.0, 0.0, 5.0])
def test_a_clock_that_is_set_between_runs_and_in_a_run(
    tmp_path: Path, hours: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it says, this run's own steps stay, as many as `keep` says, and the next one goes on from the newest."""
    config = deeppart.Config(persistent_dir=str(tmp_path), keep={"persistent": 4}, incremental=False)
    real, offset_s = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + offset_s)
    for first in (1, 4, 7):
        with deeppart.Checkpointer(config) as checkpointer:
            live = {"x": 0}
            assert checkpointer.restore(live) == (first - 1 or None) and live["x"] == first - 1
            for step in range(first, first + 3):
                offset_s += hours * 3600
                checkpointer.checkpoint({"x": step}, step).wait(timeout=PATIENCE_S)
        kept = steps_in(tmp_path)
        assert kept[-3:] == [first, first + 1, first + 2] and len(kept) == min(4, first + 2)
        assert kept[0] == max(first - 1, 1), "the newest step of the run before"
        assert deeppart.load(tmp_path)["x"] == first + 2


def newest_key(root: Path) -> StepKey:
    return list(list_steps(root))[-1]


@pytest.mark.parametrize("later", [0, 1])
def test_of_two_commits_of_one_step_all_take_the_later(
    tmp_path: Path, later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after jobs that did not see each other, where locks do not hold; the first has made more checkpoints."""
    root, aside = tmp_path / "ckpt", tmp_path / "aside"
    config = deeppart.Config(persistent_dir=str(root))
    real, offset_s = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + offset_s)
    aside.mkdir()
    for session in (0, 1):
        offset_s = 3600.0 * (session == later)
        with warnings.catch_warnings(), deeppart.Checkpointer(config) as checkpointer:
            warnings.simplefilter("ignore", deeppart.DeeppartWarning)
            for step in range(4 + session, 6):
                checkpointer.checkpoint({"x": 100 * session + step}, step).wait(timeout=PATIENCE_S)
        newest = step_directory(root, newest_key(root))
        newest.rename(aside / newest.name)
    for directory in aside.iterdir():
        directory.rename(root / directory.name)
    assert steps_in(root) == [4, 5, 5]
    live = {"x": 0}
    with deeppart.Checkpointer(config) as checkpointer:
        assert checkpointer.restore(live) == 5
    assert live["x"] == deeppart.load(root)["x"] == 100 * later + 5


@pytest.mark.parametrize("created", ["9999-12-31T23:59:59.999999Z", "2026-13-45T99:99:99.000000Z", ""])
def test_times_of_commits_grow_whatever_is_there(created: str) -> None:
    clock = CommitClock()
    first = clock.now()
    clock.saw(created)
    second, third = clock.now(), clock.now()
    assert first <= second <= third
    if created < first:
        assert second >= first and third > second
