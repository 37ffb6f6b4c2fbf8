"""A training that is submitted by submitit is queued again when Slurm asks it to end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.mpi.launchers import ROOT
from tests.slurm.rig import Rig

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm"), pytest.mark.timeout(240)]
#: Seconds.
LIMIT_S = 90.0
STEPS = 100
TRAINING = f"""
import os, sys, time
import deeppart
state = {{"step": 0}}
step = deeppart.restore(state) or 0
while step < {STEPS}:
    step += 1
    state["step"] = step
    if os.environ["RANK"] == "0":
        print(step, file=open(sys.argv[1], "a"))
    deeppart.checkpoint(state, step)
    time.sleep(0.05)
"""


@pytest.mark.now_and_then(4)
def test_no_step_is_lost_when_the_job_is_preempted(slurm: Rig, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_bytes(os.urandom(32))
    words = [sys.executable, str(ROOT / "examples" / "submitit_training.py"), "--nodes", "2"]
    words += ["--folder", str(tmp_path / "submitit"), "--", sys.executable, "train.py", "steps"]
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "DEEPPART_PERSISTENT_DIR": str(tmp_path / "ckpt"),
        "DEEPPART_SECRET_FILE": str(secret),
    }

    def steps() -> list[int]:
        file = tmp_path / "steps"
        return list(map(int, file.read_text().split())) if file.exists() else []

    job = int(slurm.run(*words, env=env, cwd=tmp_path).split()[-1])
    try:
        slurm.wait_for(lambda: len(steps()) > 20, "steps", LIMIT_S)
        slurm.run("scancel", "--signal=USR2", str(job))
        slurm.wait_for_state(job, "PENDING", timeout=LIMIT_S)
        slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now+2")
        slurm.wait_for_state(job, "COMPLETED", timeout=LIMIT_S)
    except AssertionError as error:
        logs = [file.read_text() for file in (tmp_path / "submitit").glob("*.*") if file.suffix in (".out", ".err")]
        raise AssertionError("\n".join([str(error), *logs])) from error
    finally:
        slurm.run("scancel", str(job), check=False)
    assert steps() == list(range(1, STEPS + 1))
