"""Rank 0 of a job dies and frees the lock; another rank hangs in its storage, and wakes up in its successor's time."""

from __future__ import annotations

import importlib
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.storage import parse_step_name
from tests.mpi import launchers, on_nodes

#: Where rank 1 hangs, in its third checkpoint: (function, what the path that it is about must contain).
STAGES = {
    "naming a local part": ("deeppart.storage.files.DurableFile.commit", "/local/"),
    "naming a copy": ("deeppart.storage.files.DurableFile.commit", "/partner/"),
    "naming a persistent part": ("deeppart.storage.files.DurableFile.commit", "/ckpt/"),
    "retiring on its node": ("deeppart.storage.node.NodeLevel.retire", ""),
}


def config(directory: Path, timeout: float) -> deeppart.Config:
    keep = {"persistent": 2, "local": 1, "partner": 1}
    return on_nodes.config(directory, compression="none", keep=keep, timeout=timeout)


def state(job: int, step: int) -> dict[str, Any]:
    return {"x": torch.full((500_000,), 100.0 * job + step), "step": step}


def hang_at(stage: str, directory: Path, armed: list[bool]) -> None:
    target, fragment = STAGES[stage]
    module, owner, name = target.rsplit(".", 2)
    kind = getattr(importlib.import_module(module), owner)
    real = getattr(kind, name)

    def hanging(self: Any, *arguments: Any) -> Any:
        if armed and fragment in str(getattr(self, "path", "")) and not (directory / "hangs").exists():
            (directory / "hangs").touch()
            while not (directory / "wake").exists():
                time.sleep(0.01)
        return real(self, *arguments)

    setattr(kind, name, hanging)


def first_job(directory: Path, stage: str) -> None:
    from mpi4py import MPI

    warnings.simplefilter("ignore")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    armed: list[bool] = []
    if MPI.COMM_WORLD.rank == 1:
        hang_at(stage, directory, armed)
    checkpointer = deeppart.Checkpointer(config(directory, 4.0))
    for step in (1, 2, 3):
        armed += [True] * (step == 3)
        pending = checkpointer.checkpoint(state(1, step), step)
        (directory / f"called-{MPI.COMM_WORLD.rank}-{step}").touch()
        while not pending.finished and not (directory / "hangs").exists():
            time.sleep(0.01)
    if MPI.COMM_WORLD.rank == 1:
        while not pending.finished:
            time.sleep(0.01)
        (directory / "over").touch()
    time.sleep(600)


def second_job(directory: Path) -> tuple[int | None, bool, str]:
    warnings.simplefilter("ignore")
    with deeppart.Checkpointer(config(directory, 30.0)) as checkpointer:
        live = state(0, 0)
        found = checkpointer.restore(live)
        good = found is not None and torch.equal(live["x"], state(1, found)["x"])
        for step in range((found or 0) + 1, 5):
            on_nodes.wait_for_all(checkpointer.checkpoint(state(2, step), step))
        return found, good, checkpointer._session.session


def third_job(directory: Path) -> tuple[int | None, bool]:
    with deeppart.Checkpointer(config(directory, 30.0)) as checkpointer:
        live = state(0, 0)
        found = checkpointer.restore(live)
        return found, torch.equal(live["x"], state(2, 4)["x"])


def files_of(directory: Path, session: str) -> dict[Path, tuple[int, bytes]]:
    found = {}
    for path in directory.rglob("*"):
        key = parse_step_name(path.parent.name)
        if key is not None and path.is_file() and key.session == session:
            found[path] = (path.stat().st_ino, path.read_bytes())
    return found


@pytest.mark.skipif(not launchers.is_mpich(), reason="Open MPI ends a job's other ranks with the one that is killed")
@pytest.mark.timeout(300)
@pytest.mark.sweep(4)
@pytest.mark.parametrize("stage", STAGES)
def test_a_late_rank_touches_nothing_of_the_next_job(
    stage: str, start_ranks: Any, run_ranks: Any, tmp_path: Path
) -> None:
    with start_ranks(2, first_job, tmp_path, stage, timeout=280) as job:
        for name in ("hangs", "called-1-3"):  # it may hang before that call, which needs rank 0
            job.wait_for(tmp_path / name, timeout=90)
        job.kill_keeper(0)  # it would end the other ranks with the first that dies
        job.kill(0)
        found, good, session = run_ranks(2, second_job, tmp_path, timeout=120).values[0]
        assert found in (2, 3) and good
        before = files_of(tmp_path, session)
        assert {path.parents[0].name[:17] for path in before} <= {"step-000000000003", "step-000000000004"}
        assert sum(path.name == "manifest" for path in before) == 4 - found
        (tmp_path / "wake").touch()
        job.wait_for(tmp_path / "over", timeout=60)
        assert files_of(tmp_path, session) == before
    assert run_ranks(2, third_job, tmp_path, timeout=120).values == [(4, True)] * 2
