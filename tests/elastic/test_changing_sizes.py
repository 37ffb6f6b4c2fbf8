"""4 -> 2 -> 6 -> 3 ranks in the middle of an epoch: every sample once, and the losses of a run on one rank."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
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
from tests.sharded.ranks import run_job

pytestmark = [pytest.mark.timeout(220), pytest.mark.xdist_group("torchrun")]

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


def train(directory: Path, most_steps: str, accumulation: str, optimizer_name: str) -> dict[str, Any]:
    """Train in float64, go over the data set and then over the shards in each epoch, and stop after so many steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()
    optimizer: torch.optim.Optimizer
    if optimizer_name == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loaders = {
        "map": ElasticDataLoader(data(), BATCH, accumulation=int(accumulation)),
        "shards": ElasticDataLoader(in_shards(), BATCH, accumulation=int(accumulation)),
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
                    if step - first == int(most_steps):
                        checkpointer.checkpoint(state, step=step, force=True).wait()
                        return {}
            with sums.synchronized():
                note(directory, {"epoch_loss": sums["loss"] / sums["seen"], "seen": sums["seen"]})
                sums.clear()
        assert progress.finished_epochs == EPOCHS
        note(directory, {"parameters": torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()})
    return {}


def note(directory: Path, what: dict[str, Any]) -> None:
    """A line of this rank's."""
    with (directory / f"notes-{dist.get_rank()}.jsonl").open("a") as file:
        file.write(json.dumps(what) + "\n")


def run(directory: Path, ranks: int, steps: int, *options: str) -> None:
    directory.mkdir(exist_ok=True)
    run_job(ranks, train, directory, str(steps), *options)


def notes(directory: Path, key: str) -> list[list[dict[str, Any]]]:
    """Of each rank, the lines that have something."""
    files = sorted(directory.glob("notes-*.jsonl"))
    return [[line for line in map(json.loads, file.read_text().splitlines()) if key in line] for file in files]


#: Steps of the first three runs, on 4, 2 and 6 ranks: the data set is changed in, and the shards.
MAP, SHARDS = (5, 3, STEPS * 2 + 2), (STEPS + 3, 4, 5)


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("changes", "options"), [(MAP, ("0", "sgd")), (SHARDS, ("2", "adam"))], ids=["map 0 sgd", "shards 2 adam"]
)
def test_a_training_that_changes_its_size_is_the_same_training(
    tmp_path: Path, changes: tuple[int, ...], options: tuple[str, str]
) -> None:
    straight, changing = tmp_path / "straight", tmp_path / "changing"
    run(straight, 1, 10**6, *options)
    for ranks, steps in zip((4, 2, 6, 3), (*changes, 10**6), strict=True):
        run(changing, ranks, steps, *options)
    one, several = notes(straight, "step")[0], notes(changing, "step")
    seen = Counter(
        (line["kind"], line["epoch"], sample) for of_rank in several for line in of_rank for sample in line["samples"]
    )
    assert seen == Counter(
        (kind, epoch, sample) for kind in ("map", "shards") for epoch in range(EPOCHS) for sample in range(SAMPLES)
    )
    assert [line["step"] for line in several[0]] == [line["step"] for line in one] == list(range(1, len(one) + 1))
    assert [line["kind"] for line in one] == (["map"] * STEPS + ["shards"] * STEPS) * EPOCHS
    for line, expected in zip(several[0], one, strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-10), line["step"]
    for key in ("epoch_loss", "seen", "parameters"):
        for a, b in zip(notes(changing, key)[0], notes(straight, key)[0], strict=True):
            assert a[key] == pytest.approx(b[key], rel=1e-10), key
