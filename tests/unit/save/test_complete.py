"""The end of a level: what failed is told once, and what could not be removed is made up for."""

from __future__ import annotations

from pathlib import Path

import pytest

import deeppart
from deeppart.errors import (
    CheckpointError,
    PeerTimeoutError,
)
from tests.unit.one_rank import config, state


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
