"""A rank that trains models with gradients of all kinds, and compares what is measured with what ranks tell each other.

python -m tests.elastic.kinds_job DIRECTORY
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from deeppart.elastic import ElasticDataLoader, ElasticDataParallel, Progress, gradient_norms
from tests.mpi.torchrun_job import tell

#: Steps before Adam's moments say enough, and those that are compared.
BEFORE, ROUND = 6, 4


class Turned(nn.Module):
    """Its weight lies in memory by columns; what comes of it is written into the other memory order, too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(5, 300).t()), nn.Linear(300, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(nn.functional.linear(x, self.weight)))  # type: ignore[no-any-return]


class Branches(nn.Module):
    """Each rank uses one of two, and a third one is used by none."""

    def __init__(self) -> None:
        super().__init__()
        self.branches, self.head = nn.ModuleList(nn.Linear(5, 300) for _ in range(3)), nn.Linear(300, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.branches[dist.get_rank() % 2](x)))  # type: ignore[no-any-return]


class Mixed(nn.Module):
    """Parameters of two types, which are exchanged in two buckets at least; one without elements, and a frozen one."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.other, self.head = nn.Linear(5, 300, dtype=dtype), nn.Linear(300, 1)
        self.empty, self.frozen = nn.Parameter(torch.zeros(0)), nn.Parameter(torch.ones(7), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.tanh(self.other(x.to(self.other.weight.dtype))).float()
        return self.head(inner) + self.empty.sum() + self.frozen.mean()  # type: ignore[no-any-return]


def _images() -> nn.Module:
    model = nn.Sequential(
        nn.Unflatten(1, (5, 1, 1)), nn.Upsample((3, 3)), nn.Conv2d(5, 60, 3, padding=1), nn.Tanh(), nn.Flatten(),
        nn.Linear(540, 1),
    )  # fmt: skip
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def plain() -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(5, 300), nn.Tanh(), nn.Linear(300, 1))


#: A model, its optimizer, and options of DistributedDataParallel.
KINDS: dict[str, tuple[Callable[[], nn.Module], Any, dict[str, Any]]] = {
    "channels last": (_images, torch.optim.Adam, {}),
    "turned": (Turned, torch.optim.Adam, {}),
    "unused": (Branches, torch.optim.SGD, {"find_unused_parameters": True}),
    "bfloat16": (partial(Mixed, torch.bfloat16), torch.optim.SGD, {}),
    "static graph": (partial(Mixed, torch.float64), torch.optim.SGD, {"static_graph": True}),
    "views of buckets": (plain, torch.optim.Adam, {"gradient_as_bucket_view": True}),
    "small buckets": (plain, torch.optim.SGD, {"bucket_cap_mb": 0.001}),
}


def large_model_steps() -> list[float]:
    """Whether the noise is measured in each step of a model that counts as large, and its weight in the averages."""
    progress, loader = _data()
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with patch.multiple(gradient_norms, LARGE_MODEL=1, EVERY=4):
        parallel = ElasticDataParallel(model, optimizer, progress=progress)
    found = list[float]()
    for _ in range(10):
        for x, y in loader:
            (parallel(x) - y).square().mean().backward()
            optimizer.step()
            found.append(parallel._pending is not None)
            parallel._update_noise()
            optimizer.zero_grad()
    return [*found, parallel.noise._weight]


def _data() -> tuple[Progress, ElasticDataLoader]:
    draw, progress = torch.Generator().manual_seed(7), Progress()
    data = TensorDataset(torch.randn(12, 5, generator=draw), torch.randn(12, 1, generator=draw))
    return progress, ElasticDataLoader(data, len(data), shuffle=False, progress=progress)


def _flat(model: nn.Module) -> torch.Tensor:
    """float32: gradients of all that is trained, one after the other."""
    found = []
    for each in model.parameters():
        if each.requires_grad:
            gradient = torch.zeros_like(each) if each.grad is None else each.grad
            found.append(gradient.float().flatten())
    return torch.cat(found)


def measured(make: Callable[[], nn.Module], optimizer_kind: Any, **options: Any) -> list[list[float]]:
    """Means over steps of what is measured, and what is expected: of ranks' own gradients, of their mean; and how far
    the gradients that were exchanged are from that.

    Every step has the same samples, and nothing is learned.
    """
    progress, loader = _data()
    torch.manual_seed(0)
    model = make()
    optimizer = optimizer_kind(model.parameters(), lr=0.0)
    adam = optimizer_kind is torch.optim.Adam
    parallel = ElasticDataParallel(model, optimizer, progress=progress, **options)
    ranks, found = dist.get_world_size(), []
    for _ in range(BEFORE + ROUND):
        for x, y in loader:
            apart = copy.deepcopy(model)
            apart.zero_grad()
            (apart(x) - y).square().mean().backward()
            (parallel(x) - y).square().mean().backward()
            exchanged = _flat(model)
            optimizer.step()
            if parallel._pending is not None:
                norms = parallel._pending.norms()
                found.append([*norms.mean_of_parts, *norms.of_mean])
            optimizer.zero_grad()
    found = found[-ROUND:]
    mine = _flat(apart)
    everybody = [torch.zeros_like(mine) for _ in range(ranks)]
    dist.all_gather(everybody, mine)
    mean = sum(everybody, torch.zeros_like(mine)) / ranks
    scales = mean.abs() + 1e-8 if adam else torch.ones_like(mean)  # of equal gradients
    expected = [sum((each / scales).square().sum() for each in everybody) / ranks, (mean / scales).square().sum()]
    means = [sum(each) / len(found) for each in zip(*found, strict=True)]
    return [means, [float(each) for each in expected], [float((exchanged - mean).norm() / mean.norm())]]


def accumulated(way: str) -> list[float]:
    """The estimate of |G|^2 after steps in which gradients are added up by hand, by what it is after one without.

    ``way``: "all" ranks add up one micro-batch within ``no_sync()``, or "some" do; or all exchange both ("none").
    """
    progress, loader = _data()
    torch.manual_seed(0)
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    parallel = ElasticDataParallel(model, optimizer, progress=progress)
    quiet = way == "all" or (way == "some" and dist.get_rank() == 0)
    found = list[float]()
    for step in range(4):
        for x, y in loader:
            if step and (quiet or way == "none"):
                with parallel.no_sync() if quiet else nullcontext():
                    (parallel(x) - y).square().mean().backward()
            (parallel(x) - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            parallel._update_noise()
            found.append(parallel.noise._squared[0] / parallel.noise._weight)
    return [each / found[0] for each in found]


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    kinds = {name: measured(make, kind, **options) for name, (make, kind, options) in KINDS.items()}
    several = dist.get_world_size() > 1
    by_hand = {way: accumulated(way) for way in ("all", "some", "none")} if several else {}
    tell(Path(sys.argv[1]), kinds=kinds, by_hand=by_hand, large=large_model_steps())
    dist.destroy_process_group()
