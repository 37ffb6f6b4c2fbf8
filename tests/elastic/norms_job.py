"""A rank that compares the noise that is measured with what gradients gathered from all ranks say, and then follows it.

python -m tests.elastic.norms_job DIRECTORY
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

from deeppart.elastic import ElasticDataLoader, ElasticDataParallel, Progress
from deeppart.elastic.noise import NoiseScale, Norms, norms_of_two_steps
from tests.mpi.torchrun_job import tell

LENGTH, BATCH, STEPS = 50, 7, 8
AUTOSCALED = 1500


def compared(optimizer_name: str, groups: int, accumulation: int, growth: int = 0) -> list[list[float]]:
    """Measured and expected |G|^2 and variance by group, one after the other.

    ``growth``: after so many steps the loss is multiplied by twice as much; 0 for never.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1))
    layers = [list(model[0].parameters()), list(model[2].parameters())]
    parameters = [{"params": each} for each in layers] if groups == 2 else [{"params": [*layers[0], *layers[1]]}]
    adam = optimizer_name == "adam"
    optimizer = torch.optim.AdamW(parameters, lr=1e-3) if adam else torch.optim.SGD(parameters, lr=1e-2)
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(LENGTH, 5, generator=draw)
    progress = Progress()
    data = TensorDataset(inputs, torch.randn(LENGTH, 1, generator=draw))
    loader = ElasticDataLoader(data, BATCH, accumulation=accumulation, progress=progress)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=growth or 1, enabled=growth > 0)
    parallel = ElasticDataParallel(model, optimizer, progress=progress, scaler=scaler)
    expected, own, counts = NoiseScale(groups), list[Any](), 0
    last: list[list[torch.Tensor]] | None = None
    step = 0
    while step < STEPS:
        for x, y in loader:
            if step == 3 and not accumulation and dist.get_world_size() > 1:  # a step that is given up leaves nothing
                parallel(x).square().sum().backward()
                optimizer.zero_grad()
            scaler.scale((parallel(x) - y).square().mean()).backward()
            apart = copy.deepcopy(model)
            apart.zero_grad()
            (apart(x) - y).square().mean().backward()
            own.append([loader.counted, [each.grad for each in apart.parameters()]])
            counts += loader.counted
            if not loader.ends_step:
                continue
            preconditioners = _preconditioners(model, optimizer, step) if adam else None
            mine = [sum(n * each[place] for n, each in own) / max(counts, 1) for place in range(4)]
            last = _expect(expected, counts, mine, preconditioners, groups, last)
            step, own, counts = step + 1, [], 0
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # what is measured is what was before
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    parallel._update_noise()
    return [[a for each in noise.by_group() for a in each] for noise in (parallel.noise, expected)]


def _expect(
    noise: NoiseScale,
    count: int,
    mine: list[torch.Tensor],
    preconditioners: Sequence[Any] | None,
    groups: int,
    last: list[list[torch.Tensor]] | None,
) -> list[list[torch.Tensor]]:
    """Update an estimate by what ranks tell each other in full; returns the mean gradient with its count."""
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, (count, mine))
    whole = sum(n for n, _ in everybody)
    mean = [sum(n * each[place] for n, each in everybody) / whole for place in range(4)]

    def squared(gradients: list[torch.Tensor]) -> tuple[float, ...]:
        over = (
            gradients if preconditioners is None else [g / p for g, p in zip(gradients, preconditioners, strict=True)]
        )
        each = [float(g.double().square().sum()) for g in over]
        return (sum(each),) if groups == 1 else (sum(each[:2]), sum(each[2:]))

    parts = [(n, squared(each)) for n, each in everybody if n]
    if dist.get_world_size() > 1 and len(parts) > 1:
        of_parts = tuple(sum(n * norms[g] for n, norms in parts) / whole for g in range(groups))
        noise.update(Norms(of_parts, squared(mean), len(parts), whole / BATCH))
    elif dist.get_world_size() == 1 and last is not None and int(last[1][0]) == whole:
        middle = [(a + b) / 2 for a, b in zip(last[0], mean, strict=True)]
        norms = norms_of_two_steps(squared(last[0]), squared(mean), squared(middle), whole / BATCH)
        noise.update(norms)
    return [mean, [torch.tensor(whole)]]


def _preconditioners(model: torch.nn.Module, optimizer: Any, steps: int) -> list[torch.Tensor] | None:
    if steps < 5:
        return None
    second = [optimizer.state[each]["exp_avg_sq"] for each in model.parameters()]
    return [(each / (1 - 0.999**steps)).sqrt() + 1e-8 for each in second]


def autoscaled(workers: int) -> dict[str, list[int]]:
    """Samples of each step, and those that this rank had, of an epoch whose batch follows the noise.

    Ranks' clocks go differently: what rank 0 decides has to hold for all.
    """
    draw = torch.Generator().manual_seed(5)
    inputs = torch.randn(AUTOSCALED, 5, generator=draw)
    data = TensorDataset(torch.arange(AUTOSCALED), inputs, torch.randn(AUTOSCALED, 1, generator=draw))
    progress, clock, rank = Progress(), [0.0], dist.get_rank()
    loader = ElasticDataLoader(data, BATCH, num_workers=workers, progress=progress)
    loader._clock = lambda: clock[0]
    loader.autoscale_batch_size(64, (None, 12), gradient_accumulation=True, every=10)
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    parallel = ElasticDataParallel(model, optimizer, progress=progress)
    found: dict[str, list[int]] = {"sizes": [], "samples": []}
    for _ in progress.remaining_epochs_until(1):
        for samples, x, y in loader:
            (parallel(x) - y).square().mean().backward()
            clock[0] += 0.02 + 0.0005 * len(x) + 0.001 * rank
            found["samples"] += samples.tolist()[: loader.counted]
            if loader.ends_step:
                found["sizes"].append(loader.step_size)
                optimizer.step()
                optimizer.zero_grad()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cases: list[Any] = [
        (name, groups, accumulation) for name in ("sgd", "adam") for groups in (1, 2) for accumulation in (0, 1)
    ]
    cases = [*cases, ("sgd", 1, 0, 2), ("adam", 2, 1, 3)]
    torch.set_default_dtype(torch.float64)  # processors sum in different orders: with float32 they differ by 1e-4
    norms = {" ".join(map(str, case)): compared(*case) for case in cases}
    torch.set_default_dtype(torch.float32)
    tell(Path(sys.argv[1]), norms=norms, autoscaled=[autoscaled(workers) for workers in (0, 2)])
    dist.destroy_process_group()
