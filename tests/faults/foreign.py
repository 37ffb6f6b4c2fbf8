"""A small job in a directory that it shares with other users."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import torch

import deeppart

PART = "part-00000-of-00001.dpp"
PRECIOUS = b"what the owner of the job would not lose"


def state(step: int) -> dict[str, Any]:
    return {"weight": torch.full((1000,), float(step)), "step": step}


def config(root: Path, **settings: Any) -> deeppart.Config:
    defaults: dict[str, Any] = {"timeout": 30.0, "compression": "none", "incremental": False}
    return deeppart.Config(persistent_dir=str(root / "persistent"), **(defaults | settings))


def run(settings: deeppart.Config, *steps: int) -> None:
    with deeppart.Checkpointer(settings) as checkpointer:
        for step in steps:
            checkpointer.checkpoint(state(step), step).wait(timeout=200)


def lineage(root: Path) -> str:
    return str(json.loads((root / "persistent" / "deeppart.json").read_text())["lineage"])


def step_directory(root: Path, step: int) -> Path:
    [found] = root.glob(f"step-{step:012d}*")
    return found


def everything(root: Path) -> list[Path]:
    return [root, *root.rglob("*")]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)
