"""Which leaves are replicated: what ranks find out.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.mpi.on_nodes import config

pytestmark = pytest.mark.mpi(min_size=4)


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
