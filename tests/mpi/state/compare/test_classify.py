"""Which leaves are replicated: what ranks find out, and what the user says.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.mpi.training_states import config

pytestmark = pytest.mark.mpi(min_size=4)


def replicated(comm: Any, directory: Path) -> list[tuple[int, int]]:
    state = {"w": torch.arange(200_000, dtype=torch.float32), "n": 4}
    sizes = []
    for mode in ("all", "none"):
        with deeppart.Checkpointer(config(directory / mode, replicated=mode, kappa=0.0), comm) as ck:
            pending = ck.checkpoint(state, step=1)
            pending.wait(timeout=200)
        sizes.append((pending.report.raw_bytes, pending.report.per_rank_bytes))
    return sizes


def test_replicated_override(run_on: Any, shared_path: Path) -> None:
    assert run_on(2, replicated, shared_path) == [[(400_000, 0), (800_000, 800_000)]] * 2


def diverging(comm: Any, directory: Path) -> list[int]:
    """Leaves that begin equal and differ later, large and small, in a steady structure."""
    rank = comm.rank
    state: dict[str, Any] = {
        "large": torch.zeros(100_000),
        "small": torch.zeros(10),
        "value": 0,
        "same": torch.ones(50_000),
    }
    own = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.errors.PerRankNotice)
        warnings.simplefilter("ignore", deeppart.errors.ReplicaDivergenceWarning)
        with deeppart.Checkpointer(config(directory), comm) as ck:
            for step in range(1, 5):
                if step == 2:
                    state["small"] += rank
                if step == 3:
                    state["large"] += rank
                    state["value"] = rank
                pending = ck.checkpoint(state, step=step)
                pending.wait(timeout=200)
                own.append(pending.report.per_rank_bytes)
            fresh: dict[str, Any] = {
                "large": torch.zeros(100_000),
                "small": torch.zeros(10),
                "value": 9,
                "same": torch.zeros(50_000),
            }
            ck.restore(fresh)
    assert torch.equal(fresh["large"], state["large"]) and torch.equal(fresh["small"], state["small"])
    assert fresh["value"] == rank and torch.equal(fresh["same"], state["same"])
    return own


def test_leaves_that_come_to_differ_are_noticed(run_on: Any, shared_path: Path) -> None:
    for own in run_on(3, diverging, shared_path):
        assert own == [0, 40, 400_040, 400_040]


def unequal_shapes(comm: Any, directory: Path) -> bool:
    rank = comm.rank
    state: dict[str, Any] = {"shard": torch.full((rank + 1, 3), float(rank)), "w": torch.ones(1000), "text": "x" * rank}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.errors.PerRankNotice)
        with deeppart.Checkpointer(config(directory), comm) as ck:
            ck.checkpoint(state, step=1).wait(timeout=200)
            fresh: dict[str, Any] = {"shard": torch.zeros(rank + 1, 3), "w": torch.zeros(1000), "text": ""}
            ck.restore(fresh)
    return bool(torch.equal(fresh["shard"], state["shard"])) and fresh["text"] == state["text"]


def test_shapes_may_differ_between_ranks(run_on: Any, shared_path: Path) -> None:
    assert run_on(3, unequal_shapes, shared_path) == [True] * 3
    loaded = [deeppart.load(shared_path / "ckpt", rank=rank) for rank in range(3)]
    assert [tuple(state["shard"].shape) for state in loaded] == [(1, 3), (2, 3), (3, 3)]
    assert [state["text"] for state in loaded] == ["", "x", "xx"]
