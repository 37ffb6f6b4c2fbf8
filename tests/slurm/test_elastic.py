"""slurm/elastic.sbatch: told by a signal on three nodes, it goes on on two."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.launchers import ROOT
from tests.ports import free_port
from tests.slurm.rig import Rig

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm"), pytest.mark.timeout(300)]
#: Seconds.
LIMIT_S = 60.0
SAMPLES = 1920


def steps_in(directory: Path) -> dict[int, list[dict[str, Any]]]:
    """Step -> what its ranks have noted."""
    found = defaultdict(list)
    for file in directory.glob("notes-*.jsonl"):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n") and "loss" in (note := json.loads(line)):
                found[note["step"]].append(note)
    return found


@pytest.mark.now_and_then(4)
def test_a_job_that_is_told_is_queued_again_on_other_nodes(slurm: Rig, tmp_path: Path) -> None:
    """Two seconds later: a node refuses a job in the second in which it has ended there (docs/elastic-slurm.md)."""
    env = {"OUT": str(tmp_path / "out"), "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "SECRET_DIR": str(tmp_path)}
    options = ["--nodes=3", f"--chdir={ROOT}", f"--output={tmp_path / 'log'}"]
    script = ["--samples", str(SAMPLES), "--epochs", "2", "--pace", "0.05"]
    job = slurm.sbatch(ROOT / "slurm" / "elastic.sbatch", *options, arguments=tuple(script), env=env)
    try:
        slurm.wait_for(lambda: len(steps_in(tmp_path / "out")) > 10, "steps", LIMIT_S)
        slurm.run("scancel", "--signal=USR1", str(job))
        slurm.wait_for(lambda: slurm.state(job) == "PENDING", "the job to wait again", LIMIT_S)
        slurm.run("scontrol", "update", f"JobId={job}", "NumNodes=2-2", "StartTime=now+2")
        slurm.wait_for_state(job, "COMPLETED", timeout=LIMIT_S)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{(tmp_path / 'log').read_text()}\n{slurm.logs(60)}") from error
    slurm.wait_for(lambda: not list(tmp_path.glob(".deeppart-secret-*")), "the secret to be removed", LIMIT_S)
    steps = steps_in(tmp_path / "out")
    assert sorted(steps) == list(range(1, 2 * SAMPLES // 32 + 1))
    sizes = [steps[step][0]["ranks"] for step in sorted(steps)]
    assert sizes == sorted(sizes, reverse=True) and set(sizes) == {3, 2}
    seen = [(note["epoch"], sample) for lines in steps.values() for note in lines for sample in note["samples"]]
    assert sorted(seen) == [(epoch, sample) for epoch in range(2) for sample in range(SAMPLES)]
