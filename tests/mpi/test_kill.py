"""A rank is killed with SIGKILL at a chosen step of the pipeline; the job comes back with a committed step's bytes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.mpi.on_nodes import config
from tests.sampling import sampled

#: Where to stop and be killed: (class or module, attribute, which call, before or after it).
STAGES = {
    "writing the local part": ("deeppart.storage.files.DurableFile", "write", 2, "local"),
    "naming the local part": ("deeppart.storage.files.DurableFile", "commit", 1, "local"),
    "writing the persistent part": ("deeppart.storage.files.DurableFile", "write", 1, "ckpt"),
    "naming the persistent part": ("deeppart.storage.files.DurableFile", "commit", 1, "part-"),
    "naming the manifest": ("deeppart.storage.files.DurableFile", "commit", 1, "manifest"),
    "retiring": ("deeppart.storage.persistent.PersistentLevel", "remove", 1, ""),
    "capturing": ("deeppart.state.capture.copying.CapturePlan", "copy", 1, ""),
    "restoring": ("deeppart.recovery.distribute._Flight", "__init__", 2, ""),
}


def expected(step: int, rank: int) -> dict[str, Any]:
    """The one true state of a step."""
    generator = torch.Generator().manual_seed(step)
    return {
        "w": torch.rand(1_500_000, generator=generator),
        "small": [torch.full((5,), step + place / 8) for place in range(20)],
        "rank": torch.full((1000,), 100.0 * step + rank),
        "step": step,
    }


def blank() -> dict[str, Any]:
    state = expected(0, 0)
    state["step"] = None
    for tensor in (state["w"], *state["small"], state["rank"]):
        tensor.zero_()
    return state


def equal(state: dict[str, Any], other: dict[str, Any]) -> bool:
    tensors = zip(
        (state["w"], *state["small"], state["rank"]), (other["w"], *other["small"], other["rank"]), strict=True
    )
    return all(torch.equal(one, two) for one, two in tensors) and state["step"] == other["step"]


def stop_at(stage: str, marker: Path, armed: Callable[[], bool]) -> None:
    """Make the process stand still when it reaches a stage, so that the test can kill it right there."""
    import importlib

    owner, attribute, count, text = STAGES[stage]
    module, _, name = owner.rpartition(".")
    target = getattr(importlib.import_module(module), name)
    original = getattr(target, attribute)
    calls = [0]

    def standing(self: Any, *args: Any, **kwargs: Any) -> Any:
        if armed() and text in str(getattr(self, "path", "")):
            calls[0] += 1
            if calls[0] == count:
                marker.touch()
                time.sleep(600)
        return original(self, *args, **kwargs)

    setattr(target, attribute, standing)


def life(directory: Path, stage: str | None, victim: int, number: int) -> tuple[int | None, bool]:
    """Restore, check, train on, and stand still in the given stage of the third checkpoint."""
    warnings.simplefilter("ignore", deeppart.DeeppartWarning)
    reached = [0]
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    if stage is not None and rank == victim:
        wanted = 0 if stage == "restoring" else 3
        stop_at(stage, directory / f"standing-{number}", lambda: reached[0] >= wanted)
    with deeppart.Checkpointer(config(directory, compression="none", keep={"persistent": 2}, timeout=30.0)) as ck:
        state = blank()
        step = ck.restore(state)
        good = step is None or equal(state, expected(step, rank))
        if stage is None or not good:
            return step, good
        begin = 0 if step is None else step
        for later in range(begin + 1, begin + 4):
            reached[0] += 1
            pending = ck.checkpoint(expected(later, rank), step=later)
            if later < begin + 3:
                pending.wait("persistent", timeout=200)
        time.sleep(600)
    return step, good


@pytest.mark.timeout(150)
def test_killed_at_every_stage(start_ranks: Any, run_ranks: Any, tmp_path: Path) -> None:
    committed = 0
    stages = sampled(STAGES, 2)
    for number, stage in enumerate(stages):
        victim = 0 if stage in ("naming the manifest", "retiring") else 1
        with start_ranks(2, life, tmp_path, stage, victim, number) as job:
            job.wait_for(tmp_path / f"standing-{number}")
            job.kill(victim)
            job.wait(expect_rc=None)
        committed = max(
            committed, *(int(path.parent.name.split("-")[1]) for path in (tmp_path / "ckpt").glob("step-*/manifest*"))
        )
    step, good = run_ranks(2, life, tmp_path, None, 0, 99).values[0]
    assert good
    assert step is not None and step >= committed, "nothing committed is lost"
    assert step <= 3 * len(stages)
