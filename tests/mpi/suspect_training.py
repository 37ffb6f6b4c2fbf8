"""Training whose replicas come to differ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import deeppart

#: Longer than anything takes but waiting for a rank that is gone.
TIMEOUT_S = 60.0


@contextmanager
def checkpointer(comm: Any, directory: Path, **settings: Any) -> Iterator[deeppart.Checkpointer]:
    keep = {"persistent": 0}
    with deeppart.Checkpointer(
        deeppart.Config(persistent_dir=str(directory), timeout=TIMEOUT_S, keep=keep, **settings), comm
    ) as made:
        yield made


class Training:
    """A weight that an optimizer trains, the same on all ranks until one is harmed."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.weight = torch.nn.Parameter(torch.zeros(30_000))
        self._optimizer = torch.optim.SGD([self.weight], lr=0.1)

    def step(self) -> None:
        self.weight.grad = torch.ones_like(self.weight)
        self._optimizer.step()

    @torch.no_grad()
    def harm(self, where: Any = slice(None)) -> None:
        """Rank 1 has other values there from now on."""
        if self.rank == 1:
            self.weight[where] += 1
