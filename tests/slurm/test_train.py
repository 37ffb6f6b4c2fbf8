"""slurm/train.sbatch as a user works with it: submit, lose the job, submit again, and it goes on."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mpi.launch import ROOT
from tests.slurm.rig import Rig

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.timeout(420),
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
    return max(int(path.name.removeprefix("step-")) for path in directory.glob("step-*"))


def run(rig: Rig, directory: Path, steps: int, until: Callable[[], bool], *options: str) -> tuple[int, Path, str]:
    """Submit until the job is over or ``until`` is true: (job, log, state).

    Slurm's pmi2 plugin reads half a request now and then; MPI_Init then fails on all ranks, or never ends, before
    anything of ours runs. What a user does is what is done here: end the job and submit again. A job may also print
    that and run all the same, so it is given some time.
    """
    for _ in range(4):
        job, log = submit(rig, directory, steps, *options)
        attempt = _Attempt(rig, job, log, until)
        rig.wait_for(attempt.over, "a checkpoint or the end", 120.0)
        state = rig.state(job)
        if state == "COMPLETED" or until() or not attempt.garbled:
            break
        if state in UNDER_WAY:
            rig.run("scancel", "--signal=KILL", str(job))
            rig.wait_for_state(job, "CANCELLED", "FAILED")
    return job, log, state


@dataclass
class _Attempt:
    """One submission, and whether Slurm has spoilt its start."""

    rig: Rig
    job: int
    log: Path
    until: Callable[[], bool]
    seen_at: float | None = None

    @property
    def garbled(self) -> bool:
        daemons = (file.read_text(errors="replace") for file in self.rig.directory.glob("slurmd.*.log"))
        told = any(f"[{self.job}.0] error: mpi/pmi2" in text for text in daemons)
        return told or (self.log.is_file() and "mpi/pmi2: request not begin with" in self.log.read_text())

    def over(self) -> bool:
        if self.until() or self.rig.state(self.job) not in UNDER_WAY:
            return True
        if self.seen_at is None and self.garbled:
            self.seen_at = time.monotonic()
        return self.seen_at is not None and time.monotonic() - self.seen_at > 20.0


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
