"""``deeppart slurm init``: what it writes is a script of bash; tests/slurm submits it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.cli_support import call

ROOT = Path(__file__).parents[3]
TRAINING = ("--", "python", "train.py", "--note", "a b")


def written(*arguments: str) -> str:
    words = [sys.executable, "-m", "deeppart", "slurm", "init", *arguments]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize(
    ("options", "start"),
    [
        (("--spares", "1"), "deeppart run --ranks 4 --spares 1 -- python train.py --note 'a b' &"),
        (("--torchrun",), "train.py --note 'a b' &"),
        (("--mpi",), "python train.py --note 'a b' &"),
    ],
)
def test_a_script_is_sound_and_short(options: tuple[str, ...], start: str) -> None:
    script = written(
        "--dir", "my ckpt", "--name", "my run", "--nodes", "2-5", "--ranks", "4", "--gpus", "4", *options, *TRAINING
    )
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=60)
    assert start in script and len(script.splitlines()) <= 29
    assert "export DEEPPART_PERSISTENT_DIR='my ckpt'\n" in script and "--gpus-per-node=4" in script
    assert "--job-name='my run' --output='my run-%j.log'" in script
    if "--torchrun" in options:
        assert "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in script and "20000 + SLURM_JOB_ID % 10000" in script
    assert "--nodes=2-5 --exclusive" in script  # otherwise Slurm gives a processor to each task


def test_the_script_in_the_repository_is_what_the_command_writes() -> None:
    script = (ROOT / "slurm" / "elastic.sbatch").read_text()
    command = shlex.split(script.splitlines()[1].removeprefix("# Written by: "))
    assert command[:3] == ["deeppart", "slurm", "init"]
    assert written(*command[3:]) == script


@pytest.mark.parametrize(
    ("command", "started"),
    [
        (("python", "-m", "package.train"), "-m package.train &"),
        (("python", "-u", "train.py"), "--no-python python -u train.py &"),
        (("train.py",), "train.py &"),
        (("bash", "run.sh"), "--no-python bash run.sh &"),
    ],
)
def test_torchrun_starts_any_command(command: tuple[str, ...], started: str) -> None:
    assert f"\n    {started}\n" in written("--dir", "ckpt", "--torchrun", "--", *command)


def test_impossible_requests_are_refused() -> None:
    broken = ("--dir", "d", "--name", "a\necho b")
    for options in (("--dir", "s3://bucket"), ("--dir", "d", "--spares", "1", "--mpi"), broken, ()):
        call("slurm", "init", *options, *TRAINING, code=2)


def test_a_job_that_ends_while_it_is_being_asked_is_queued_again(tmp_path: Path) -> None:
    """A signal interrupts the shell's wait, which then knows no exit code. The job may not be known at first."""
    programs = {
        "srun": "sleep 4",
        "deeppart": f"mkdir {tmp_path}/tried && exit 2; touch {tmp_path}/asked; sleep 3",
        "scontrol": f"touch {tmp_path}/queued",
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "1"}
    script = written("--dir", str(tmp_path / "ckpt"), "--mpi", *TRAINING)
    with subprocess.Popen(["bash", "-c", script], env=env) as job:
        time.sleep(1.0)
        job.send_signal(signal.SIGUSR1)
        assert job.wait(60) == 0
    assert (tmp_path / "asked").exists() and (tmp_path / "queued").exists()
