"""slurm/train.sbatch as a user works with it: submit, lose the job, submit again, and it goes on."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mpi.launch import ROOT, is_mpich
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
SMALL = ("--layers", "1", "--width", "48")


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


def has_checkpoint(directory: Path) -> bool:
    """The manifest is the commit (docs/format.md)."""
    return any(directory.glob("step-*/manifest"))


def resumed_from(log: Path) -> int | None:
    found = re.search(r"resumed from step (\d+)", log.read_text())
    return int(found[1]) if found else None


def newest_step(directory: Path) -> int:
    return max(int(path.name.split("-")[1]) for path in directory.glob("step-*"))


def run(rig: Rig, directory: Path, steps: int, until: Callable[[], bool], *options: str) -> tuple[int, Path, str]:
    """Submit, and wait until the job is over or ``until`` is true: (job, log, state)."""
    job, log = submit(rig, directory, steps, *options)
    rig.wait_for(lambda: until() or rig.state(job) not in UNDER_WAY, "a checkpoint or the end", 120.0)
    return job, log, rig.state(job)


@pytest.mark.parametrize("again", [["--nodes=2"], ["--nodes=3", "--ntasks-per-node=1"]], ids=["same", "other-ranks"])
def test_resubmitted_job_resumes(slurm: Rig, tmp_path: Path, again: list[str]) -> None:
    job, log, state = run(slurm, tmp_path, ENDLESS, lambda: has_checkpoint(tmp_path / "checkpoints"))
    assert state in UNDER_WAY and has_checkpoint(tmp_path / "checkpoints"), f"{state}\n{log.read_text()}"
    slurm.run("scancel", "--signal=KILL", str(job))
    slurm.wait_for_state(job, "CANCELLED", "FAILED")
    assert resumed_from(log) is None, log.read_text()

    last = newest_step(tmp_path / "checkpoints") + 4 * EVERY
    _, log, state = run(slurm, tmp_path, last, lambda: False, *again)
    assert state == "COMPLETED", log.read_text()
    step = resumed_from(log)
    assert step is not None, log.read_text()
    assert EVERY <= step < last
    assert step % EVERY == 0
    # A message of MPI's start that Slurm has read in pieces; jobs survive that now and then, but not always.
    assert "mpi/pmi2" not in slurm.logs(lines=1000)
