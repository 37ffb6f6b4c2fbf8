"""slurm/train.sbatch as a user works with it: submit, lose the job, submit again, and it goes on."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mpi.launchers import ROOT, is_mpich
from tests.slurm.rig import Rig

pytestmark = [
    pytest.mark.skipif(not is_mpich(), reason="Open MPI asks Slurm for PMIx, which is not there"),
    pytest.mark.slurm,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.timeout(180),
]

#: A job that is to be ended does not come to its last step by itself.
ENDLESS, EVERY = 1_000_000, 5
UNDER_WAY = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
SMALL = ("--layers", "1", "--width", "48", "--heads", "2", "--context", "16", "--batch", "2")


def submit(rig: Rig, directory: Path, steps: int, *options: str) -> tuple[int, Path]:
    """The job, and the file with what it prints."""
    number = len(list(directory.glob("*.log")))
    log = directory / f"{number}.log"
    python = directory / "python"  # a rank whose peers are killed aborts: no core file in the working directory
    python.write_text(f'#!/bin/sh\nulimit -c 0\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    env = {
        "STEPS": str(steps),
        "EVERY": str(EVERY),
        "CHECKPOINT_DIR": str(directory / "checkpoints"),
        "LOCAL_DIR": str(directory / "local" / "{node}"),
        "PYTHON": str(python),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }
    job = rig.sbatch(ROOT / "slurm" / "train.sbatch", f"--output={log}", *options, arguments=SMALL, env=env, cwd=ROOT)
    return job, log


def resumed_from(log: Path) -> int | None:
    found = re.search(r"resumed from step (\d+)", log.read_text())
    return int(found[1]) if found else None


def newest_step(directory: Path) -> int:
    """Of the committed ones, 0 for none. The manifest is the commit (docs/format.md)."""
    return max((int(path.parent.name.split("-")[1]) for path in directory.glob("step-*/manifest")), default=0)


def run(rig: Rig, directory: Path, steps: int, until: Callable[[], bool], *options: str) -> tuple[int, Path, str]:
    """Submit, and wait until the job is over or ``until`` is true: (job, log, state)."""
    job, log = submit(rig, directory, steps, *options)
    rig.wait_for(lambda: until() or rig.state(job) not in UNDER_WAY, "a checkpoint or the end", 120.0)
    return job, log, rig.state(job)


def lose(rig: Rig, directory: Path, newer_than: int) -> Path:
    """A job that is killed once there is a newer checkpoint; returns what it printed."""
    checkpoints = directory / "checkpoints"
    job, log, state = run(rig, directory, ENDLESS, lambda: newest_step(checkpoints) > newer_than)
    assert state in UNDER_WAY and newest_step(checkpoints) > newer_than, f"{state}\n{log.read_text()}"
    rig.run("scancel", "--signal=KILL", str(job))
    rig.wait_for_state(job, "CANCELLED", "FAILED")
    return log


@pytest.mark.now_and_then(2)
def test_resubmitted_jobs_resume(slurm: Rig, tmp_path: Path) -> None:
    """On the same ranks, which are lost again, and then on others."""
    assert resumed_from(log := lose(slurm, tmp_path, newer_than=0)) is None, log.read_text()
    first = newest_step(tmp_path / "checkpoints")
    step = resumed_from(log := lose(slurm, tmp_path, newer_than=first))
    assert step is not None and first <= step, log.read_text()
    assert step % EVERY == 0

    second = newest_step(tmp_path / "checkpoints")
    last = second + 4 * EVERY
    _, log, state = run(slurm, tmp_path, last, lambda: False, "--nodes=3", "--ntasks-per-node=1")
    assert state == "COMPLETED", log.read_text()
    step = resumed_from(log)
    assert step is not None, log.read_text()
    assert second <= step < last
    assert step % EVERY == 0
    # A message of MPI's start that Slurm has read in pieces; jobs survive that now and then, but not always.
    assert "mpi/pmi2" not in slurm.logs(lines=1000)
