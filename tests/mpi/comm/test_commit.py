"""A rank that gives up waiting for the verdict on a level: the others may have heard that it is complete."""

from __future__ import annotations

import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.comm import commit
from tests.mpi import on_nodes
from tests.mpi.patience import patient_barrier


def config(directory: Path, level: str, timeout: float) -> deeppart.Config:
    every = {"persistent": 0, "partner": 0, "parity": 0} | {level: 1}
    return on_nodes.config(directory, timeout=timeout, every=every)


def state(step: int) -> dict[str, Any]:
    return {"w": torch.full((200_000,), float(step))}


def settled(pending: deeppart.Pending) -> dict[str, str]:
    while not pending.finished:
        time.sleep(0.01)
    return {name: level.state for name, level in pending.report.levels.items() if level.state != "off"}


def late(directory: Path, level: str) -> list[dict[str, str]]:
    """Rank 0 decides on step 2 when the others wait no longer; a third step follows. Then node 0 is lost."""
    from mpi4py import MPI

    comm, timeout = MPI.COMM_WORLD, 4.0
    decide, decided = commit._decide, []

    def slowly(reports: list[Any], act: Any) -> Any:
        decided.append(reports)
        if len(decided) == 4:  # after local and the other level of step 1, and local of step 2
            time.sleep(2.5 * timeout)
        return decide(reports, act)

    commit._decide = slowly  # type: ignore[assignment]
    states = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        with deeppart.Checkpointer(config(directory, level, timeout), comm) as ck:
            for step in (1, 2, 3):
                states.append(settled(ck.checkpoint(state(step), step)))
                patient_barrier(comm)
    return states


def lose_and_restore(directory: Path, level: str) -> tuple[int | None, float]:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    if comm.rank == 0:
        shutil.rmtree(directory / "local" / "node0")
    comm.Barrier()
    live = state(0)
    with deeppart.Checkpointer(config(directory, level, 60.0), comm) as ck:
        return ck.restore(live), float(live["w"][-1])


@pytest.mark.sweep(2)
@pytest.mark.parametrize("level", ["partner", "parity"])
def test_what_some_rank_was_told_is_complete_can_be_restored(run_ranks: Any, tmp_path: Path, level: str) -> None:
    """A later step, each part of which is on one node, does not take the place of what survives the loss of one."""
    told = run_ranks(2, late, tmp_path, level).values
    assert [states[1][level] for states in told] == ["done", "failed"], told
    assert all(states[2] == {"local": "done", level: "failed"} for states in told), told
    assert run_ranks(2, lose_and_restore, tmp_path, level).values == [(2, 2.0)] * 2
