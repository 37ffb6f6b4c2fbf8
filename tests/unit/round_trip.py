"""A state saved, loaded and restored in place; everything must be equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deeppart
from tests.states import blank, difference


def config(directory: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(directory / "ckpt"), **{"timeout": 20.0, **settings})


def save(directory: Path, state: Any, **settings: Any) -> deeppart.Report:
    with deeppart.Checkpointer(config(directory, **settings)) as ck:
        pending = ck.checkpoint(state, step=1)
        pending.wait(timeout=200)
        return pending.report


def restore(directory: Path, live: Any) -> Any:
    with deeppart.Checkpointer(config(directory)) as ck:
        assert ck.restore(live) == 1
    return live


def both_ways(directory: Path, state: Any) -> Any:
    """Save, load, restore into a blank clone; everything must be equal. Returns what was loaded."""
    save(directory, state)
    loaded = deeppart.load(directory / "ckpt")
    assert difference(state, loaded) is None
    live = restore(directory, blank(state))
    assert difference(state, live, ordered=False) is None
    return loaded


def wrapped(item: Any) -> dict[str, Any]:
    return {"item": item}
