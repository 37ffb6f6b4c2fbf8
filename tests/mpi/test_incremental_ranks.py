"""Parts that refer to those of earlier steps, on several nodes: retired, and restored on these and on other ranks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.mpi.on_nodes import config, wait_for_all

pytestmark = pytest.mark.mpi(min_size=4)

FROZEN, CHANGING = 4_000_000, 100_000


def state(step: int) -> dict[str, Any]:
    """Of which most stays as it is."""
    frozen = torch.rand(FROZEN, generator=torch.Generator().manual_seed(7))
    return {"frozen": frozen, "adapter": torch.full((CHANGING,), float(step)), "step": step}


def job(comm: Any, directory: Path) -> deeppart.Checkpointer:
    return deeppart.Checkpointer(config(directory, compression="none", keep={"persistent": 1}), comm)


def restored(comm: Any, directory: Path) -> tuple[int | None, bool, str]:
    live = state(0)
    with job(comm, directory) as checkpointer:
        step = checkpointer.restore(live)
        explanation = "\n".join(checkpointer.explanation)
    right = state(step or 0)
    return step, all(torch.equal(live[name], right[name]) for name in ("frozen", "adapter")), explanation


def retired(comm: Any, directory: Path) -> tuple[Any, ...]:
    """Step 1 goes, but for the parts to which step 3 refers; these go once step 5 is all new."""
    with job(comm, directory) as checkpointer:
        for step in (1, 2, 3):
            refers = wait_for_all(checkpointer.checkpoint(state(step), step))["persistent"].referenced_bytes > 0
    comm.Barrier()
    left = sorted(path.parent.name[5:17].lstrip("0") for path in (directory / "ckpt").glob("step-*/part-*"))
    manifests = len(list((directory / "ckpt").glob("step-*/manifest")))
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(directory / "local")
    comm.Barrier()
    results = [restored(comm, directory)]
    fewer = comm.Split(int(comm.rank >= 3), comm.rank)
    if comm.rank < 3:
        results.append(restored(fewer, directory))
    fewer.Free()
    comm.Barrier()
    with job(comm, directory) as checkpointer:
        checkpointer.restore(state(0))
        wait_for_all(checkpointer.checkpoint(state(5), 5))
    comm.Barrier()
    return refers, left, manifests, results, len(list((directory / "ckpt").glob("step-*")))


@pytest.mark.timeout(110)
def test_parts_go_with_the_last_step_that_refers_to_them(run_on: Any, shared_path: Path) -> None:
    for rank, (refers, left, manifests, results, steps) in enumerate(run_on(4, retired, shared_path)):
        assert refers and (left, manifests, steps) == (["1"] * 4 + ["3"] * 4, 1, 1)
        assert [(step, good) for step, good, _ in results] == [(3, True)] * (2 if rank < 3 else 1)
        for _, _, explanation in results:
            assert "4 of 4 parts persistent" in explanation
            assert "the redundancy of 4 of its parts is not rebuilt" in explanation
