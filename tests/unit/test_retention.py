"""What is removed, and what does not wait for it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from deeppart.levels.persistent import PersistentLevel
from deeppart.retention import Retention

PATIENCE_S = 20.0


def test_a_file_system_that_removes_slowly_holds_up_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can take seconds; but a step that may be among those removed is not written anew meanwhile."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(self: PersistentLevel, steps: set[int]) -> None:
        assert steps == {1}
        begun.set()
        assert go_on.wait(PATIENCE_S)

    monkeypatch.setattr(PersistentLevel, "remove", slow)
    levels = ("local", "persistent")
    every, keep = dict.fromkeys(levels, 1), dict.fromkeys(levels, 1)
    retention = Retention({}, PersistentLevel(tmp_path), keep, every, {"local": set(), "persistent": {1}})
    slowly = threading.Thread(target=retention.committed, args=("persistent", 2, set))
    local = threading.Thread(target=retention.committed, args=("local", 3, set))
    again = threading.Thread(target=retention.protect, args=(1,))
    slowly.start()
    assert begun.wait(PATIENCE_S)
    local.start()
    again.start()
    local.join(PATIENCE_S)
    assert not local.is_alive()
    again.join(0.2)
    assert again.is_alive()
    go_on.set()
    for thread in (slowly, again):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
