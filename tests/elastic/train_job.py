"""A rank of a small training in float64 that is stopped, and goes on on another number of ranks.

In each epoch it goes over a map-style data set, and then over the same samples in shards, whose lengths nobody has
said.

python -m tests.elastic.train_job DIRECTORY STEPS ACCUMULATION OPTIMIZER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

import deeppart
from deeppart.elastic import (
    Accumulator,
    ElasticDataLoader,
    ElasticDataParallel,
    ShardedDataset,
    progress,
    remaining_epochs_until,
)

SAMPLES, BATCH, EPOCHS = 203, 16, 2
#: Steps of one pass over either data set.
STEPS = 13


def data() -> TensorDataset:
    draw = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, 8, dtype=torch.float64, generator=draw)
    outputs = (inputs @ torch.randn(8, 1, dtype=torch.float64, generator=draw)).tanh()
    return TensorDataset(inputs, outputs, torch.arange(SAMPLES))


def in_shards() -> ShardedDataset[range]:
    """The same samples."""
    samples = data()

    def read(shard: range) -> Iterator[Any]:
        for number in shard:
            yield samples[number]

    ends = [*range(0, SAMPLES, 17), SAMPLES]
    return ShardedDataset([range(first, end) for first, end in pairwise(ends)], read, lanes=8)


def train(directory: Path, most_steps: int, accumulation: int, optimizer_name: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    optimizer: torch.optim.Optimizer
    if optimizer_name == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loaders = {
        "map": ElasticDataLoader(data(), BATCH, accumulation=accumulation),
        "shards": ElasticDataLoader(in_shards(), BATCH, accumulation=accumulation),
    }
    parallel = ElasticDataParallel(model, optimizer)
    sums = Accumulator()
    paths = {"persistent_dir": directory / "ckpt", "local_dir": directory / "local" / "{rank}"}
    settings: dict[str, Any] = {name: str(path) for name, path in paths.items()}
    with deeppart.Checkpointer(**settings, node_size=1, timeout=60.0) as checkpointer:
        state = parallel.state()
        step = checkpointer.restore(state) or 0
        first = step
        for epoch in remaining_epochs_until(EPOCHS):
            for kind, loader in loaders.items():
                loss_of_step, samples = torch.zeros(1, dtype=torch.float64), list[int]()
                for inputs, outputs, numbers in loader:
                    loss = (parallel(inputs) - outputs).square().mean()
                    loss.backward()
                    loss_of_step += loss.detach() * loader.weight / dist.get_world_size()
                    samples += numbers.tolist()[: loader.counted]
                    sums.update(loss=loss.detach() * len(inputs), seen=len(inputs))
                    if not loader.ends_step:
                        continue
                    optimizer.step()
                    optimizer.zero_grad()
                    step += 1
                    dist.all_reduce(loss_of_step)
                    found = {"kind": kind, "step": step, "epoch": epoch, "loss": loss_of_step.item()}
                    note(directory, found | {"samples": samples})
                    loss_of_step, samples = torch.zeros(1, dtype=torch.float64), []
                    if step - first == most_steps:
                        checkpointer.checkpoint(state, step=step, force=True).wait()
                        return
            with sums.synchronized():
                note(directory, {"epoch_loss": sums["loss"] / sums["seen"], "seen": sums["seen"]})
                sums.clear()
        assert progress.finished_epochs == EPOCHS
        note(directory, {"parameters": torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()})


def note(directory: Path, what: dict[str, Any]) -> None:
    """A line of this rank's."""
    with (directory / f"notes-{dist.get_rank()}.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    dist.barrier()
    dist.destroy_process_group()
