"""Jobs in which every rank is a node of its own, unless they say otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deeppart

#: Longer than anything takes but waiting for a rank that is gone.
LONG_S = 200.0


def config(directory: Path, **settings: Any) -> deeppart.Config:
    """All directories are below one."""
    local = str(directory / "local" / "{node}")
    settings = {"local_dir": local, "node_size": 1, "timeout": LONG_S, **settings}
    return deeppart.Config(persistent_dir=str(directory / "ckpt"), **settings)


def wait_for_all(pending: deeppart.Pending) -> dict[str, deeppart.types.LevelReport]:
    """The levels of a checkpoint, all of which are complete."""
    for level in pending.levels:
        pending.wait(level, timeout=LONG_S)
    return {level: pending.report.levels[level] for level in pending.levels}
