"""States and checkpoints that tests of other formats share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import deeppart
from deeppart.state.tensors.leaves import TORCH_DTYPES
from tests.tensor_kinds import NAN


def saved(directory: Path, state: Any, step: int = 1) -> Path:
    """A checkpoint of one process."""
    with deeppart.Checkpointer(deeppart.Config(persistent_dir=str(directory), timeout=20.0)) as ck:
        ck.checkpoint(state, step).wait(timeout=200)
    return directory


def training() -> dict[str, Any]:
    """What people save: a model, an optimizer, a schedule; and leaves that are easily lost."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(300, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 300)).sum().backward()
    optimizer.step()
    weight = torch.randn(6, 5)
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "weight": weight,
        "tied": weight,
        "turned": weight.T,
        "rows": weight[2:4],
        "large": torch.arange(600_000, dtype=torch.float32),
        "nan": torch.cat([NAN, torch.tensor([-0.0])]),
        "scalar": torch.tensor(3, dtype=torch.int16),
        "empty": torch.zeros(0, 3, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "step": 1 << 100,
        "betas": (0.9, -0.0),
        "name": "größe",
    }


def bits(name: str) -> torch.Tensor:
    """A tensor of a dtype with every byte in it."""
    dtype = TORCH_DTYPES[name]
    octets = torch.arange(256, dtype=torch.int32).to(torch.uint8).repeat(2)
    return (octets & 1 if dtype is torch.bool else octets).view(dtype)
