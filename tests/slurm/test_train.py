"""slurm/train.sbatch as a user works with it: submit, lose the job, submit again, and it goes on."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.mpi.launch import ROOT
from tests.slurm.rig import Rig

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.timeout(180),
]

STEPS, EVERY = 50, 5
SMALL = ("--layers", "1", "--width", "48")


def submit(rig: Rig, directory: Path, *options: str) -> tuple[int, Path]:
    """The job, and the file with what it prints."""
    number = len(list(directory.glob("*.log")))
    log = directory / f"{number}.log"
    env = {
        "STEPS": str(STEPS),
        "EVERY": str(EVERY),
        "CHECKPOINT_DIR": str(directory / "checkpoints"),
        "LOCAL_DIR": str(directory / "local" / "{node}"),
        "PYTHON": sys.executable,
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


@pytest.mark.parametrize("again", [["--nodes=2"], ["--nodes=3", "--ntasks-per-node=1"]], ids=["same", "other-ranks"])
def test_resubmitted_job_resumes(slurm: Rig, tmp_path: Path, again: list[str]) -> None:
    job, log = submit(slurm, tmp_path)
    slurm.wait_for_state(job, "RUNNING")
    slurm.wait_for(lambda: has_checkpoint(tmp_path / "checkpoints") or ended(slurm, job, log), "a checkpoint", 90.0)
    slurm.run("scancel", "--signal=KILL", str(job))
    slurm.wait_for_state(job, "CANCELLED", "FAILED")
    assert resumed_from(log) is None, log.read_text()

    job, log = submit(slurm, tmp_path, *again)
    slurm.wait_for(
        lambda: slurm.state(job) not in ("PENDING", "RUNNING", "COMPLETING"), "the end of the training", 120.0
    )
    assert slurm.state(job) == "COMPLETED", log.read_text()
    step = resumed_from(log)
    assert step is not None, log.read_text()
    assert EVERY <= step < STEPS
    assert step % EVERY == 0


def ended(rig: Rig, job: int, log: Path) -> bool:
    """Never true: fails when the job is over, with what it printed."""
    assert rig.state(job) in ("PENDING", "RUNNING", "CONFIGURING"), f"{rig.state(job)}\n{log.read_text()}"
    return False
