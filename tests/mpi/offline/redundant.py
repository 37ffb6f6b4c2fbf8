"""A job of three nodes with copies and parity."""

from __future__ import annotations

from pathlib import Path

import torch

import deeppart
from tests.mpi.on_nodes import wait_for_all

NODES = ("node0", "node1", "node2")


def train(root: Path) -> int:
    config = deeppart.Config(
        persistent_dir=str(root / "ckpt"),
        local_dir=str(root / "{node}"),
        node_size=1,
        compression="none",
        every={"local": 1, "partner": 1, "parity": 1, "persistent": 2},
        parity_group=3,
    )
    with deeppart.Checkpointer(config) as checkpointer:
        for step in (1, 2):
            state = {"w": torch.rand(300_000, generator=torch.Generator().manual_seed(step)), "step": step}
            wait_for_all(checkpointer.checkpoint(state, step=step))
        return checkpointer.rank


def nodes(job: Path) -> list[object]:
    return [argument for name in NODES for argument in ("--local", job / name)]


def find(job: Path, pattern: str) -> Path:
    (path,) = job.glob(pattern)
    return path
