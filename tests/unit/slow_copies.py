"""A model whose lazy capture takes long enough to do something meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

import deeppart


def config(path: Path, **settings: Any) -> deeppart.Config:
    return deeppart.Config(persistent_dir=str(path / "ckpt"), capture="lazy", timeout=30.0, **settings)


def model(seed: int = 0) -> Any:
    """A ``Sequential``; of its layers, torch's types know no weights."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(200, 300), nn.BatchNorm1d(300), nn.Linear(300, 200))


def gradients(module: nn.Module) -> None:
    module.zero_grad()
    module(torch.randn(8, 200)).square().sum().backward()


def saved(path: Path, step: int) -> Any:
    return deeppart.load(path / "ckpt", step)
