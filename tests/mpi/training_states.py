"""States of a training job, with leaves of each rank's own, saved and restored."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

import deeppart
from tests.mpi.on_nodes import config


def training_state(rank: int, steps: int) -> dict[str, Any]:
    """A model trained a little: parameters replicated, BatchNorm buffers, RNG and data position of each rank's own."""
    torch.manual_seed(1)
    model: Any = torch.nn.Sequential(torch.nn.Linear(64, 2000), torch.nn.BatchNorm1d(2000), torch.nn.Linear(2000, 7))
    optimizer = torch.optim.Adam(model.parameters())
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 64) + torch.arange(4)[:, None]).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model[1].running_mean += torch.rand(2000, generator=generator)  # each rank sees other data
    return {
        "model": model,
        "optimizer": optimizer,
        "rng": generator.get_state(),
        "data": {"position": rank * 1000 + steps, "order": torch.randperm(50, generator=generator)},
        "step": steps,
        "moments": torch.full((300, 300), 0.5 * steps),
    }


def flat_bytes(state: Any) -> dict[str, Any]:
    from deeppart.state.paths.keys import readable
    from deeppart.state.tree.flattening import flatten

    flat = flatten(state)
    leaves = {readable(leaf.path): flat.data[leaf.index].detach().clone() for leaf in flat.arrays}
    return leaves | {readable(leaf.path): leaf.value for leaf in flat.values}


def same(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Paths that differ."""
    assert one.keys() == other.keys()
    differing = []
    for path, value in one.items():
        equal = torch.equal(value, other[path]) if isinstance(value, torch.Tensor) else value == other[path]
        if not equal:
            differing.append(path)
    return differing


PER_RANK = {"model/1.running_mean", "rng", "data/position", "data/order"}


def save(comm: Any, directory: Path, **settings: Any) -> tuple[dict[str, Any], Any]:
    state = training_state(comm.rank, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
            pending = ck.checkpoint(state, step=3)
            pending.wait(timeout=200)
    notices = [str(w.message) for w in caught if issubclass(w.category, deeppart.errors.PerRankNotice)]
    return flat_bytes(state), (pending.report.raw_bytes, pending.report.per_rank_bytes, notices)


def restore(
    comm: Any, directory: Path, per_rank: Any = "strict", **settings: Any
) -> tuple[int | None, dict[str, Any], Any]:
    state = training_state(comm.rank + 100, 0)  # other seeds, an optimizer that has not stepped
    with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
        step = ck.restore(state, per_rank=per_rank)
        return step, flat_bytes(state), ck.explanation
