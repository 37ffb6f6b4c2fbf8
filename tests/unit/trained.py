"""Models that have been trained for a few steps, and states that were saved and restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import deeppart


def save_and_restore(directory: Path, state: Any, live: Any) -> Any:
    config = deeppart.Config(persistent_dir=str(directory / "ckpt"), timeout=20.0)
    with deeppart.Checkpointer(config) as ck:
        pending = ck.checkpoint(state, step=3)
        pending.wait(timeout=200)
        assert ck.restore(live) == 3
    return deeppart.load(directory / "ckpt")


def train(model: torch.nn.Module, optimizer: Any, steps: int) -> None:
    dtype = next(model.parameters()).dtype
    for _ in range(steps):

        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(torch.arange(20, dtype=dtype).view(5, 4) / 10).float().square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)


def network(seed: int, dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3, bias=False)
    ).to(dtype)  # fmt: skip
