"""What ``deeppart slurm init`` writes: asked by a signal at any time it is queued again, and a rank may die."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.launchers import ROOT
from tests.slurm.rig import Rig

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm"), pytest.mark.timeout(600)]
#: Seconds.
LIMIT_S = 120.0
SAMPLES = 1920


def steps_in(directory: Path) -> dict[int, list[dict[str, Any]]]:
    """Step -> what its ranks have noted."""
    found = defaultdict(list)
    for file in directory.glob("notes-*.jsonl"):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n") and "loss" in (note := json.loads(line)):
                found[note["step"]].append(note)
    return found


def submit(rig: Rig, directory: Path, *arguments: str) -> int:
    """The job, on three nodes."""
    script, out = directory / "job.sbatch", directory / "out"
    training = ["python", str(ROOT / "examples" / "elastic_training.py"), str(out), *arguments]
    written = ["-m", "deeppart", "slurm", "init", "--dir", str(out / "ckpt"), "--nodes", "3", "--", *training]
    script.write_bytes(subprocess.run([sys.executable, *written], check=True, capture_output=True).stdout)
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SECRET_DIR": str(directory),
        "TMPDIR": str(directory),
    }
    return rig.sbatch(script, f"--chdir={directory}", f"--output={directory / 'log'}", env=env)


def tell(rig: Rig, job: int) -> None:
    """As Slurm does it before the end of the time; then the job waits in the queue."""
    rig.run("scancel", "--batch", "--signal=USR1", str(job))
    rig.wait_for_state(job, "PENDING", timeout=LIMIT_S)


def start_again(rig: Rig, job: int, *changes: str) -> None:
    """Two seconds later: a node refuses a job in the second in which it has ended there (docs/elastic-slurm.md)."""
    rig.run("scontrol", "update", f"JobId={job}", "StartTime=now+2", *changes)
    rig.wait_for_state(job, "RUNNING", timeout=LIMIT_S)


def is_running(rig: Rig, text: str) -> bool:
    """Whether a process of the jobs has it in its command line."""
    for pid in rig.left():
        with contextlib.suppress(OSError):  # it has ended
            if text in Path(f"/proc/{pid}/cmdline").read_text():
                return True
    return False


@pytest.mark.now_and_then(4)
def test_a_job_that_is_told_before_its_ranks_listen_is_queued_again(slurm: Rig, tmp_path: Path) -> None:
    """As soon as deeppart run, its agents, or the processes that fork ranks have been started."""
    starting = ("deeppart\0run", "deeppart\0run\0--nodes", "deeppart.agent.zygote")
    job = submit(slurm, tmp_path)
    try:
        for each in starting:
            slurm.wait_for(lambda each=each: is_running(slurm, each), each, LIMIT_S)  # type: ignore[misc]
            tell(slurm, job)
            start_again(slurm, job)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{(tmp_path / 'log').read_text()}\n{slurm.logs(60)}") from error
    finally:
        slurm.run("scancel", str(job), check=False)
    assert not steps_in(tmp_path / "out"), "told too late for what is tested"


@pytest.mark.now_and_then(4)
def test_a_job_goes_on_after_a_rank_has_died_and_on_other_nodes(slurm: Rig, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, "--samples", str(SAMPLES), "--epochs", "2", "--pace", "0.05")
    try:
        slurm.wait_for(lambda: len(steps_in(tmp_path / "out")) > 15, "steps", LIMIT_S)
        assert (local := tmp_path / f"deeppart-{getpass.getuser()}-{job}").is_dir()
        last = max(steps_in(tmp_path / "out"))
        rank = json.loads((tmp_path / "out" / "notes-1.jsonl").read_text().splitlines()[-1])["pid"]
        os.kill(rank, signal.SIGKILL)
        slurm.wait_for(lambda: max(steps_in(tmp_path / "out")) > last + 15, "steps after the failure", LIMIT_S)
        tell(slurm, job)
        start_again(slurm, job, "NumNodes=2-2")
        slurm.wait_for_state(job, "COMPLETED", timeout=LIMIT_S)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{(tmp_path / 'log').read_text()}\n{slurm.logs(60)}") from error
    assert not local.exists(), "the training is done"
    steps = steps_in(tmp_path / "out")
    assert sorted(steps) == list(range(1, 2 * SAMPLES // 32 + 1))
    newest = {step: max(lines, key=lambda note: float(note["time"])) for step, lines in steps.items()}
    sizes = [newest[step]["ranks"] for step in sorted(steps)]
    assert sizes == sorted(sizes, reverse=True) and set(sizes) == {3, 2}
    seen = [(note["epoch"], sample) for step, lines in steps.items()
            for note in lines if note["run"] == newest[step]["run"] for sample in note["samples"]]  # fmt: skip
    assert sorted(seen) == [(epoch, sample) for epoch in range(2) for sample in range(SAMPLES)]
