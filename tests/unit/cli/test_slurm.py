"""``deeppart slurm init``: what it writes is a script of bash; tests/slurm submits it."""

from __future__ import annotations

import shlex
import subprocess
import sys
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
    script = written("--dir", "my ckpt", "--nodes", "2-5", "--ranks", "4", "--gpus", "4", *options, *TRAINING)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=60)
    assert start in script and len(script.splitlines()) <= 27
    assert "export DEEPPART_PERSISTENT_DIR='my ckpt'\n" in script and "--gpus-per-node=4" in script


def test_the_script_in_the_repository_is_what_the_command_writes() -> None:
    script = (ROOT / "slurm" / "elastic.sbatch").read_text()
    command = shlex.split(script.splitlines()[1].removeprefix("# Written by: "))
    assert command[:3] == ["deeppart", "slurm", "init"]
    assert written(*command[3:]) == script


def test_impossible_requests_are_refused() -> None:
    for options in (("--dir", "s3://bucket"), ("--dir", "d", "--spares", "1", "--mpi"), ()):
        call("slurm", "init", *options, *TRAINING, code=2)
