"""What is removed, and what does not wait for it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from deeppart.levels.persistent import PersistentLevel
from deeppart.model import StepKey
from deeppart.retention import Retention

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
