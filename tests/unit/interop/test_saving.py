"""When a checkpoint is due, and what is open and closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import deeppart
from deeppart.errors import CheckpointError, ConfigError
from deeppart.interop.saving import Saving


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "auto"])
def test_every_is_a_number_of_steps(every: int) -> None:
    with pytest.raises(ConfigError, match="every"):
        Saving(None, every, sigterm=False)


def test_its_own_checkpointer_is_closed_and_the_last_step_is_saved_once(tmp_path: Path) -> None:
    saving = Saving(deeppart.Config(persistent_dir=str(tmp_path)), 2, sigterm=False)
    assert saving.restore({"a": 1}, "strict") is None
    saving.begin()
    assert [step for step in range(1, 6) if saving.due(step)] == [2, 4]
    saving.save({"a": 2}, 4)
    assert saving.is_safe(4) and not saving.is_safe(5)
    first = saving.checkpointer
    saving.end()
    with pytest.raises(CheckpointError, match="closed"):
        first.checkpoint({"a": 3}, 5)
    state = {"a": 0}
    assert saving.restore(state, "strict") == 4 and state == {"a": 2}  # opened again
    saving.end()


def test_one_that_was_given_stays_open(tmp_path: Path) -> None:
    with deeppart.Checkpointer(persistent_dir=str(tmp_path)) as checkpointer:
        saving = Saving(checkpointer, 1, sigterm=False)
        saving.save({"a": 1}, 1)
        saving.end()
        checkpointer.checkpoint({"a": 2}, 2)


def test_a_signal_makes_one_step_due_which_goes_to_every_level(tmp_path: Path) -> None:
    saving = Saving(deeppart.Config(persistent_dir=str(tmp_path), every={"persistent": 9}), 100, sigterm=True)
    saving.begin()
    try:
        saving.save({"a": 1}, 1)
        saving.save({"a": 1}, 2)
        assert not saving.is_safe(2)  # of nine, one goes there
        os.kill(os.getpid(), signal.SIGTERM)
        assert saving.due(3) and saving.stopped
        saving.save({"a": 1}, 3)
        assert saving.is_safe(3)
        assert not saving.due(4)
    finally:
        saving.end()


def test_deeppart_imports_no_trainer() -> None:
    script = "import sys, deeppart, deeppart.interop, deeppart.checkpointer; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"transformers", "accelerate", "lightning", "torchdata"}.intersection(found)
