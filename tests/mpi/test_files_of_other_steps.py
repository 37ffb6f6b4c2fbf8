"""A file of one step lies where a part of another one belongs, and is the only one of its part: nothing is lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart

pytestmark = [
    pytest.mark.mpi(min_size=4),
    pytest.mark.filterwarnings("ignore::deeppart.errors.DeeppartWarning"),
]


def config(directory: Path) -> deeppart.Config:
    local, keep = str(directory / "local" / "{node}"), {"local": 2, "partner": 2}
    every = {"persistent": 0, "partner": 1}
    return deeppart.Config(
        str(directory / "ckpt"), local_dir=local, node_size=1, every=every, keep=keep, compression="none", timeout=200.0
    )


def state(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.arange(100_000.0) * step}


def restore(comm: Any, directory: Path, step: int) -> tuple[bool, str]:
    """Whether it is right; and what was said."""
    live = state(0)
    with deeppart.Checkpointer(config(directory), comm) as ck:
        ck.restore(live, step=step)
        deadline = time.monotonic() + 200
        while ck.repairing and time.monotonic() < deadline:
            time.sleep(0.01)
        said = "\n".join(ck.explanation)
    return torch.equal(live["w"], state(step)["w"]), said


def moved(comm: Any, directory: Path, with_its_directory: bool) -> tuple[tuple[bool, str], tuple[bool, str] | None]:
    """Somebody moves part 0 of step 1 over that of step 2; then step 2 is restored, and step 1."""
    with deeppart.Checkpointer(config(directory), comm) as ck:
        for step in (1, 2):
            ck.checkpoint(state(step), step).wait("partner", timeout=200)
    comm.Barrier()
    one, two = (next((directory / "local" / "node0").glob(f"*/step-{step:012d}-*/part-00000-*")) for step in (1, 2))
    comm.Barrier()
    data = one.read_bytes()
    comm.Barrier()
    if comm.rank == 0:
        for copy in (directory / "local").glob("*/*/partner/step-000000000001-*/part-00000-*"):
            copy.unlink()
        one.replace(two)
        if with_its_directory:
            one.parent.rmdir()
    comm.Barrier()
    second = restore(comm, directory, 2)
    comm.Barrier()
    if with_its_directory:
        assert two.read_bytes() == data, "the only file of the part was written over"
        return second, None
    return second, restore(comm, directory, 1)


def test_it_gets_its_own_place_back_before_anything_is_written(run_on: Any, shared_path: Path) -> None:
    for (second, said), first in run_on(4, moved, shared_path, False):
        assert second and "was in the wrong place: renamed" in said
        assert first is not None and first[0]


def test_where_its_step_has_no_directory_it_stays(run_on: Any, shared_path: Path) -> None:
    for (second, _), _ in run_on(4, moved, shared_path, True):
        assert second
