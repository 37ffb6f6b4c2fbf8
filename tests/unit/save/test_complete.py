"""The end of a level: what failed is told once, and what could not be removed is made up for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.errors import CheckpointError, PeerTimeoutError, StorageError
from deeppart.storage import PersistentLevel
from tests.unit.one_rank import config, state


def test_parts_of_a_level_that_is_over_do_not_pile_up(memory: Path) -> None:
    """Once ranks have given up waiting for each other at a level, nothing can be committed there any more."""
    with deeppart.Checkpointer(config(memory)) as ck:
        ck.checkpoint(state(1), 1).wait(timeout=200)
        ck._pipeline._channels["persistent"].broken = PeerTimeoutError("rank 1 did not answer")
        for step in (2, 3):
            pending = ck.checkpoint(state(step), step)
            pending.wait("local", timeout=200)
            with pytest.raises(CheckpointError, match="until a new Checkpointer is opened"):
                pending.wait("persistent", timeout=200)
            ck._pipeline.wait_until_idle(30)
            assert len(list((memory / "p").glob("step-*/part-*"))) == 1


@pytest.mark.parametrize("stands", [True, False])
def test_parts_stay_while_a_restart_may_take_the_step(
    memory: Path, monkeypatch: pytest.MonkeyPatch, stands: bool
) -> None:
    """An error of a commit does not say that there is no manifest: it may have been written before."""
    commit = PersistentLevel.commit

    def failing(level: PersistentLevel, key: Any, manifest: bytes) -> None:
        if stands:
            commit(level, key, manifest)
        raise StorageError("cannot write the manifest")

    with deeppart.Checkpointer(config(memory)) as ck:
        ck.checkpoint(state(1), 1).wait(timeout=200)
        with monkeypatch.context() as patch:
            patch.setattr(PersistentLevel, "commit", failing)
            with pytest.raises(CheckpointError, match="cannot write" if not stands else "may take the step"):
                ck.checkpoint(state(2), 2).wait("persistent", timeout=200)
        ck._pipeline.wait_until_idle(30)
        assert len(list((memory / "p").glob("step-*/part-*"))) == 1 + stands
    live = state(0)
    with deeppart.Checkpointer(config(memory, local_dir=None)) as ck:
        assert ck.restore(live) == 1 + stands
