"""What is removed, and what does not wait for it."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest

import deeppart
from deeppart.levels.persistent import PersistentLevel
from deeppart.model import StepKey
from deeppart.retention import Retention
from tests.unit.cli_support import steps_in

PATIENCE_S = 20.0


def test_a_file_system_that_removes_slowly_holds_up_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can take seconds."""
    begun, go_on = threading.Event(), threading.Event()
    old = StepKey(1, "a" * 32, 0)

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
