"""States of which most stays as it is, saved on several nodes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

import deeppart

FROZEN, CHANGING = 4_000_000, 100_000


def config(directory: Path, **settings: Any) -> deeppart.Config:
    settings = {"node_size": 1, "timeout": 200.0, "every": {"persistent": 0}, "compression": "none", **settings}
    return deeppart.Config(
        persistent_dir=str(directory / "ckpt"), local_dir=str(directory / "local" / "{node}"), **settings
    )


def state(step: int) -> dict[str, Any]:
    frozen = torch.rand(FROZEN, generator=torch.Generator().manual_seed(7))
    return {"frozen": frozen, "adapter": torch.full((CHANGING,), float(step)), "step": step}


def save(checkpointer: deeppart.Checkpointer, *steps: int) -> dict[str, deeppart.types.LevelReport]:
    for step in steps:
        pending = checkpointer.checkpoint(state(step), step)
        for level, report in pending.report.levels.items():
            if report.state != "off":
                pending.wait(level, timeout=200)
    return {level: each for level, each in pending.report.levels.items() if each.state == "done"}


def restored(comm: Any, directory: Path, **settings: Any) -> tuple[int | None, bool, str]:
    live = state(0)
    with deeppart.Checkpointer(config(directory, **settings), comm) as checkpointer:
        step = checkpointer.restore(live)
        explanation = "\n".join(checkpointer.explanation)
    right = state(step or 0)
    return step, all(torch.equal(live[name], right[name]) for name in ("frozen", "adapter")), explanation


def at_once(comm: Any, function: Any, *args: Any) -> None:
    """On rank 0 alone, while the others wait."""
    comm.Barrier()
    if comm.rank == 0:
        function(*args)
    comm.Barrier()


def lose(directory: Path, *nodes: int) -> None:
    for node in nodes:
        shutil.rmtree(directory / "local" / f"node{node}")
