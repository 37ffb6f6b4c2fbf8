"""The end of a level: what failed is told once, and what could not be removed is made up for."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.errors import (
    BackgroundFailureWarning,
    CheckpointError,
    PeerTimeoutError,
)
from tests.unit.cli_support import block
from tests.unit.one_rank import config, local_steps, persistent_steps, state


def test_failures_are_told_once(memory: Path) -> None:
    with deeppart.Checkpointer(config(memory, local_dir=None)) as ck:
        block(ck, memory / "p", 1)
        first = ck.checkpoint(state(1), 1)
        with pytest.raises(CheckpointError):
            first.wait(timeout=200)  # told here
        block(ck, memory / "p", 2)
        second = ck.checkpoint(state(2), 2)
        while not second.finished:
            time.sleep(0.005)
        block(ck, memory / "p", 3)
        with pytest.warns(BackgroundFailureWarning, match="step 2"):
            third = ck.checkpoint(state(3), 3)
        while not third.finished:
            time.sleep(0.005)
        with pytest.warns(BackgroundFailureWarning, match="step 3"):
            ck.checkpoint(state(4), 4).wait(timeout=200)
        assert ck.failures == 3
        ck.checkpoint(state(5), 5).wait(timeout=200)


def test_retiring_that_is_refused_is_reported_and_made_up_for(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with deeppart.Checkpointer(config(memory, keep={"persistent": 1})) as ck:
        ck.checkpoint(state(1), 1).wait(timeout=200)
        ck._pipeline.wait_until_idle(30)
        with monkeypatch.context() as patch:

            def refuse(*arguments: Any, **options: Any) -> None:
                raise OSError(5, "no")

            patch.setattr(os, "unlink", refuse)
            pending = ck.checkpoint(state(2), 2)
            pending.wait("local", timeout=200)
            pending.wait("persistent", timeout=200)
            ck._pipeline.wait_until_idle(30)
        assert "cannot remove an old checkpoint" in str(pending.report.retire_error)
        assert persistent_steps(memory) == [1, 2] and ck.failures == 0
        with pytest.warns(BackgroundFailureWarning) as caught:
            ck.checkpoint(state(3), 3).wait(timeout=200)
        texts = [str(warning.message) for warning in caught]
        (text,) = texts  # on the node, the old files are set aside to be written over, which takes no unlink
        assert "step 2 is complete at level 'persistent'" in text
    assert persistent_steps(memory) == [3] and local_steps(memory) == [3]


def test_parts_of_a_level_that_is_over_do_not_pile_up(memory: Path) -> None:
    """Once ranks have given up waiting for each other at a level, nothing can be committed there any more."""
    with deeppart.Checkpointer(config(memory)) as ck:
        ck.checkpoint(state(1), 1).wait(timeout=200)
        ck._pipeline._completer._channels["persistent"].broken = PeerTimeoutError("rank 1 did not answer")
        for step in (2, 3):
            pending = ck.checkpoint(state(step), step)
            pending.wait("local", timeout=200)
            with pytest.raises(CheckpointError, match="until a new Checkpointer is opened"):
                pending.wait("persistent", timeout=200)
            ck._pipeline.wait_until_idle(30)
            assert len(list((memory / "p").glob("step-*/part-*"))) == 1
