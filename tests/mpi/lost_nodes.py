"""Jobs whose nodes are lost, and what a restore brings back."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch

import deeppart
from tests.mpi.on_nodes import config, wait_for_all

PARTNER = {"every": {"persistent": 0}}
PARITY = {"every": {"persistent": 0, "partner": 0, "parity": 1}, "parity_group": 4, "parity_tolerate": 2}


def state(step: int, rank: int, elements: int = 300_000) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    shared = {f"w{number}": torch.rand(elements // (number + 1), generator=generator) for number in range(3)}
    return {"shared": shared, "own": torch.full((50 + rank,), float(100 * step + rank)), "step": step}


def save(comm: Any, directory: Path, settings: dict[str, Any], steps: tuple[int, ...] = (1, 2)) -> dict[str, int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.errors.PerRankNotice)
        with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
            for step in steps:
                reports = wait_for_all(ck.checkpoint(state(step, comm.rank), step))
    comm.Barrier()  # no rank looks at what another one is still removing
    return {level: report.nbytes for level, report in reports.items()}


def restore(comm: Any, directory: Path, settings: dict[str, Any]) -> tuple[int | None, bool, tuple[str, ...]]:
    """(step, whether every byte is right, explanation); redundancy has been rebuilt when this returns."""
    live = state(0, comm.rank)
    saved_by = 4
    with deeppart.Checkpointer(config(directory, **settings), comm) as ck, warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.errors.PerRankNotice)
        step = ck.restore(live, per_rank="strict" if comm.size == saved_by else "drop")
        explanation = ck.explanation
    if step is None:
        return None, False, explanation
    right = state(step, comm.rank)
    good = all(torch.equal(live["shared"][name], right["shared"][name]) for name in right["shared"])
    own = right["own"] if comm.size == saved_by else state(0, comm.rank)["own"]
    return step, good and torch.equal(live["own"], own), explanation


def lose(comm: Any, directory: Path, *nodes: int) -> None:
    comm.Barrier()
    if comm.rank == 0:
        for node in nodes:
            shutil.rmtree(directory / "local" / f"node{node}", ignore_errors=True)
    comm.Barrier()


def one_after_another(
    comm: Any, directory: Path, settings: dict[str, Any], losses: list[tuple[int, ...]]
) -> list[tuple[tuple[int, ...], Any]]:
    """Whichever nodes are lost, they are back when the next ones are."""
    save(comm, directory, settings)
    results = []
    for nodes in losses:
        lose(comm, directory, *nodes)
        results.append((nodes, restore(comm, directory, settings)))
    return results


def exchange(one: Path, other: Path) -> None:
    """Each file gets the other one's name."""
    one.rename(one.with_suffix(".moved"))
    other.rename(one)
    one.with_suffix(".moved").rename(other)


def short(*arguments: Any, **options: Any) -> None:
    """There is no memory."""
    raise MemoryError
