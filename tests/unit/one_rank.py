"""A job of one rank with two levels, and what is in its directories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import deeppart
from tests.unit.cli_support import step_dir


def config(directory: Path, **settings: Any) -> deeppart.Config:
    defaults: dict[str, Any] = {"local_dir": str(directory / "l"), "timeout": 30.0}
    return deeppart.Config(persistent_dir=str(directory / "p"), **defaults | settings)


def state(step: int, count: int = 1000) -> dict[str, Any]:
    return {"x": torch.full((count,), step, dtype=torch.int32), "step": step}


def numbers(directory: Path, pattern: str) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in directory.glob(pattern))


def local_steps(directory: Path) -> list[int]:
    return numbers(directory / "l", "*/step-*")


def persistent_steps(directory: Path) -> list[int]:
    return numbers(directory / "p", "step-*")


def states_of(pending: deeppart.Pending) -> tuple[str, str]:
    levels = pending.report.levels
    return levels["local"].state, levels["persistent"].state


def leave_behind(memory: Path) -> None:
    """What a crash leaves: parts without a manifest, temporary files, an old local step."""
    with deeppart.Checkpointer(config(memory, keep={"persistent": 0})) as ck:
        for step in (1, 2, 3):
            ck.checkpoint(state(step), step).wait(timeout=200)
    (step_dir(memory / "p", 2) / "manifest").unlink()
    third = step_dir(memory / "p", 3)
    (third / "manifest").rename(third / ".manifest.tmp-77-0a1b2c3d")
    (third / ".part-00000-of-00001.dpp.tmp-77").write_bytes(b"half")
    (memory / "p" / f"step-000000000004-{'a' * 32}-000000").mkdir()
    (local,) = (memory / "l").iterdir()
    fourth = local / f"step-000000000004-{'a' * 32}-000000"
    fourth.mkdir()
    (fourth / ".part-00000-of-00001.dpp.tmp-77-0a1b2c3d").write_bytes(b"half")


BIG = 3_000_000  # int32: 12 MB
