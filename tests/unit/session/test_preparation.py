"""What is made ready before the first checkpoint, and that nothing of it stays."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from deeppart.mapped import lies_in_memory
from deeppart.save import ShareSize
from deeppart.session import Preparation
from deeppart.session import preparation as module
from deeppart.state.capture.staging import Staging

SIZE = ShareSize(30_000_000, pinned=False, leaves=10)


def files(root: Path) -> list[str]:
    return sorted(name for _, _, names in os.walk(root) for name in names if ".dpp" in name)


@pytest.fixture
def in_memory(opened: Any, memory: Path) -> Any:
    if not lies_in_memory(memory):
        pytest.skip("no file system in memory here")
    return lambda **settings: opened(**({"local_dir": str(memory), "compression": "none"} | settings))


def test_memory_and_a_file_for_each_step_in_use(in_memory: Any, memory: Path) -> None:
    staging, session = Staging(), in_memory(keep={"local": 2})
    preparation = Preparation(session, staging)
    preparation.begin(SIZE)
    assert preparation.wait(200) and staging.nbytes == SIZE.nbytes
    names = [f"part-00000-of-00001.dpp.{each}" for each in range(3)]
    assert files(memory) == sorted(names)
    preparation.close()
    assert files(memory) == [] and staging.nbytes == 0


def test_a_checkpoint_ends_the_making_of_files(in_memory: Any, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session, staging = in_memory(keep={"local": 5}), Staging()
    level, begun, goes_on = session.node_levels["local"], threading.Event(), threading.Event()
    real = level.recycled.make

    def first_file(*arguments: Any) -> bool:
        begun.set()
        assert goes_on.wait(200)
        made: bool = real(*arguments)
        return made

    monkeypatch.setattr(level.recycled, "make", first_file)
    preparation = Preparation(session, staging)
    preparation.begin(SIZE)
    assert begun.wait(200)
    preparation.a_share_comes(SIZE.nbytes)
    goes_on.set()
    assert preparation.wait(200) and files(memory) == []
    preparation.close()


def test_storage_that_hangs_holds_nobody_up(in_memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    session, staging = in_memory(), Staging()
    release = threading.Event()
    monkeypatch.setattr(module, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(session.node_levels["local"].recycled, "make", lambda *arguments: release.wait(200))
    preparation = Preparation(session, staging)
    preparation.begin(SIZE)
    preparation.begin(ShareSize(1000, pinned=False, leaves=1))
    assert not preparation.wait(0.05) and staging.nbytes == SIZE.nbytes
    preparation.close()
    assert staging.nbytes == 0
    release.set()
    assert preparation.wait(200)
