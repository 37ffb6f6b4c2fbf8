"""``every="auto"`` on several ranks: one decision for all, histories of killed jobs, and calls that do not match."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.histories import often_failing
from tests.mpi.patience import patient_broadcast


def checkpointer(directory: Path, **settings: Any) -> deeppart.Checkpointer:
    return deeppart.Checkpointer(
        persistent_dir=directory / "p", local_dir=directory / "l-{node}", node_size=1, every="auto", timeout=20.0,
        **settings,
    )  # fmt: skip


def train(directory: Path, least: int, stand: bool = False) -> dict[str, Any]:
    """Train until there were so many checkpoints; with ``stand``, wait to be killed after them."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    state: dict[str, Any] = {"w": torch.zeros(50_000), "step": 0}
    made: list[tuple[int, list[str]]] = []
    with checkpointer(directory) as ck:
        restored = ck.restore(state)
        step, ends = restored or 0, time.monotonic() + 40
        while patient_broadcast(world, len(made) < least and time.monotonic() < ends):
            step += 1
            state["w"] += 1
            state["step"] = step
            time.sleep(0.002 * (1 + world.rank))  # ranks are not in step with each other
            pending = ck.checkpoint(state, step)
            if pending.levels:
                made.append((step, sorted(pending.levels)))
                pending.wait("persistent" if "persistent" in pending.levels else "local", timeout=200)
        if stand:
            (directory / f"standing-{world.rank}").touch()
            time.sleep(600)
        ck.checkpoint(state, step + 1, force=True).wait(timeout=200)
        return {"restored": restored, "made": made, "cadence": None if ck.cadence is None else str(ck.cadence)}


@pytest.mark.timeout(120)
def test_all_ranks_checkpoint_at_the_same_steps_and_deaths_are_remembered(
    start_ranks: Any, run_ranks: Any, tmp_path: Path
) -> None:
    often_failing(tmp_path / "p")
    with start_ranks(3, train, tmp_path, 2, True) as job:
        for rank in range(3):
            job.wait_for(tmp_path / f"standing-{rank}")
        job.kill(1)
        job.wait(expect_rc=None)
    found = run_ranks(3, train, tmp_path, 2).values
    assert found[0]["made"] == found[1]["made"] == found[2]["made"] and len(found[0]["made"]) == 2
    assert found[0]["made"][0][1] == ["local", "partner", "persistent"]
    assert found[0]["restored"] > 0
    assert found[0]["cadence"] is not None and found[1]["cadence"] is None, "rank 0 decides"
    killed, last = json.loads((tmp_path / "p" / "deeppart-runs.json").read_text())["runs"][-2:]
    assert killed["seen"] and not killed["ended"] and killed["nodes"] == 3
    assert last["restored"] == "local" and last["ended"]


def unlike(directory: Path, mistake: str) -> str:
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    with (
        checkpointer(directory)
        if mistake == "calls"
        else deeppart.Checkpointer(persistent_dir=directory / "p", every={"persistent": 2}, timeout=20.0) as ck
    ):
        state = {"x": torch.ones(5)}
        ck.checkpoint(state, 1).wait(timeout=200)
        try:
            if mistake == "calls" and rank == 1:
                ck.checkpoint(state, 2)
            ck.checkpoint(state, 3, force=mistake == "calls" or rank == 1)
        except deeppart.errors.RanksDisagreeError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("mistake", ["calls", "force"])
def test_calls_that_do_not_match_are_an_error_on_every_rank(run_ranks: Any, tmp_path: Path, mistake: str) -> None:
    found = run_ranks(2, unlike, tmp_path, mistake).values
    if mistake == "force":
        assert all("not all with `force`" in text for text in found)
    else:
        assert all("rank 0: checkpoint(step=3), rank 1: checkpoint(step=2)" in text for text in found)
