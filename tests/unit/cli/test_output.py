"""Texts that commands share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import deeppart
from tests.unit.cli_support import call, part_path
from tests.unit.one_damage import one_damage


def test_long_lists_are_cut(tmp_path: Path) -> None:
    state = {f"leaf {i}": np.full(3, i) for i in range(50)}
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(tmp_path))) as checkpointer:
        checkpointer.checkpoint(state, step=1).wait("persistent", timeout=200)
    part_path(tmp_path, 1).unlink()
    assert "    and 30 more leaves; --json lists all\n  50 leaves damaged\n" in call("verify", tmp_path, code=1)
    assert len(one_damage(tmp_path)["leaves"]) == 50
