"""A small training on one rank, step after step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from deeppart.elastic import ElasticDataLoader, ElasticDataParallel, Progress
from tests.unit.elastic.jobs import Alone


@contextmanager
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@dataclass
class Setting:
    progress: Progress
    loader: ElasticDataLoader
    model: torch.nn.Linear
    optimizer: torch.optim.Optimizer
    parallel: ElasticDataParallel

    def step(self, batch: Any) -> None:
        self.parallel(batch[0]).square().mean().backward()
        if self.loader.ends_step:
            self.optimizer.step()
            self.optimizer.zero_grad()


def setting(optimizer: Any = torch.optim.SGD, *, accumulation: int = 0, batch: int = 4, **options: Any) -> Setting:
    torch.manual_seed(0)
    progress, model = Progress(), torch.nn.Linear(3, 2)
    made = optimizer(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(16, 3))
    loader = ElasticDataLoader(data, batch, accumulation=accumulation, progress=progress, ranks=Alone())
    return Setting(progress, loader, model, made, ElasticDataParallel(model, made, progress=progress, **options))
