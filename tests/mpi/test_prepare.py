"""Getting ready for the first checkpoint, on several ranks: it says nothing of what that one holds."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.mpi.outcomes import LONG_S, config


def state(rank: int) -> dict[str, Any]:
    torch.manual_seed(5)
    return {
        "w": torch.randn(400_000),
        "b": torch.randn(300),
        "own": torch.full((150_000,), float(rank)),
        "n": 1,
    }


def prepared_then_diverged(comm: Any, directory: Path) -> dict[str, Any]:
    """All ranks hold the same ``w`` when they prepare, and other bytes of it when they save."""
    rank = comm.rank
    live = state(rank)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config(directory), comm) as ck:
            ck.prepare(live)
            live["w"][100 + rank] += 1.0
            live["b"][3] += rank
            ck.checkpoint(live, 1).wait(timeout=LONG_S)
            ck.checkpoint(live, 2).wait(timeout=LONG_S)
    wanted = {name: value.clone() for name, value in live.items() if name != "n"}
    again = state(7)
    with deeppart.Checkpointer(config(directory), comm) as ck:
        assert ck.restore(again) == 2
    return {
        "exact": all(torch.equal(again[name], value) for name, value in wanted.items()),
        "told": [str(each.message) for each in told if issubclass(each.category, deeppart.errors.PerRankNotice)],
    }


@pytest.mark.mpi(min_size=2)
def test_what_was_alike_when_it_was_prepared_may_differ_when_it_is_saved(run_on: Any, shared_path: Path) -> None:
    met = run_on(2, prepared_then_diverged, shared_path)
    assert [each["exact"] for each in met] == [True, True]
    assert len(met[0]["told"]) == 1, "only the checkpoint tells, of all that differs then"
    assert all(f" {name}" in met[0]["told"][0].replace(",", " ") for name in ("own", "w", "b"))
    assert met[1]["told"] == []
