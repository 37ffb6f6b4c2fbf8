"""The alarm: leaves that all ranks held alike come to differ on some of them, and the warning says where."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.mpi.on_nodes import config

pytestmark = pytest.mark.mpi(min_size=4)

ELEMENTS = 60_000


def state(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    layers = {f"layer{number}": torch.rand(ELEMENTS, generator=generator) for number in range(4)}
    return {"model": layers, "bias": torch.rand(10, generator=generator), "step": step, "value": 7}


def damage(rank: int, mine: dict[str, Any]) -> None:
    """One rank has gone astray, every rank goes its own way, and two halves differ."""
    if rank == 2:
        mine["model"]["layer1"][: ELEMENTS // 2] += 1e-3
        # A single bit, which sampling would hardly find: the alarm makes everything be compared.
        mine["model"]["layer3"][777] = torch.nextafter(mine["model"]["layer3"][777], torch.tensor(2.0))
    mine["model"]["layer0"] += rank
    mine["bias"] += rank
    mine["value"] = rank
    mine["model"]["layer2"] *= 1 + rank % 2


def training(comm: Any, directory: Path) -> tuple[list[str], list[tuple[str, ...]], list[int], bool]:
    """Four steps on replicas, which are damaged after the second; with how many bytes were each rank's own."""
    reported, own, mine = [], [], {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config(directory), comm) as ck:
            for step in (1, 2, 3, 4):
                mine = state(step)
                if step >= 3:
                    damage(comm.rank, mine)
                pending = ck.checkpoint(mine, step)
                pending.wait(timeout=200)
                reported.append(pending.report.diverged)
                own.append(pending.report.per_rank_bytes)
            back = state(0)
            assert ck.restore(back) == 4
    same = all(torch.equal(back["model"][name], mine["model"][name]) for name in mine["model"])
    texts = [
        str(each.message) for each in caught if issubclass(each.category, deeppart.errors.ReplicaDivergenceWarning)
    ]
    same = same and torch.equal(back["bias"], mine["bias"]) and back["value"] == mine["value"] == comm.rank
    return texts, reported, own, same


def test_the_alarm_names_leaf_ranks_and_step(run_on: Any, shared_path: Path) -> None:
    lines = {
        *(f"model/layer{number}: rank 2 differs from ranks 0-1 and 3" for number in (1, 3)),
        *("bias: every rank holds other bytes", "model/layer0: every rank holds other bytes"),
        "model/layer2: ranks 0 and 2 hold other bytes than ranks 1 and 3",
    }
    results = run_on(4, training, shared_path)
    for rank, (texts, reported, own, same) in enumerate(results):
        assert same, "every rank gets its own back"
        assert [set(each) for each in reported] == [set(), set(), lines, set()], "once, and on every rank"
        assert own == [0, 0, *[4 * (4 * ELEMENTS + 10)] * 2]
        assert len(texts) == (rank == 0)
    assert "checkpoint(step=3)" in results[0][0][0] and all(line in results[0][0][0] for line in lines)
