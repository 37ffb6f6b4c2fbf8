"""An error that nobody catches: one rank prints it, without the library's frames, and the others a line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.launchers import ROOT, environment, find_mpiexec, options, unavailable
from tests.mpi.torchrun import torchrun_prints

LIMIT_S = 100.0
pytestmark = [pytest.mark.xdist_group("ranks-2"), pytest.mark.timeout(250)]

#: Restores a model under another name; as many ranks as its second argument says, from the last one on.
SCRIPT = """
import sys, torch, deeppart

def state(name):
    torch.manual_seed(1)
    return {"model": torch.nn.ModuleDict({name: torch.nn.Linear(3, 2), "head": torch.nn.Linear(2, 2)})}

with deeppart.Checkpointer(persistent_dir=sys.argv[1], timeout=60) as checkpointer:
    checkpointer.checkpoint(state("backbone"), step=3).wait("persistent")
    renamed = checkpointer.rank >= checkpointer.world_size - int(sys.argv[2])
    checkpointer.restore(state("encoder" if renamed else "backbone"))
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def mpirun_prints(*arguments: str | Path) -> str:
    launcher = find_mpiexec()
    assert launcher is not None
    command = [launcher, "-n", "3", *options(launcher, LIMIT_S), sys.executable, "-m", "mpi4py", *arguments]
    env = environment({}, LIMIT_S)
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode, run.stdout
    return run.stderr


def check_printed(text: str, rank: int, others: str) -> None:
    """One rank has printed all of it, and each other one a line."""
    assert text.count("    checkpointer.restore(state(") == 1, text
    summary = "the checkpoint has leaves that the live module lacks: model/backbone.weight"
    told = [line for line in text.splitlines() if "StructureMismatchError" in line]
    assert told == [f"deeppart.errors.StructureMismatchError: {summary}"], text
    assert text.count("rename= if only names have changed") == 1, text
    assert str(ROOT / "deeppart") not in text, text
    pointers = sorted(line for line in text.splitlines() if line.startswith("deeppart: rank"))
    assert pointers == [f"deeppart: rank {each}: {others} (see rank {rank})" for each in {0, 1, 2} - {rank}], text


@pytest.mark.skipif(unavailable() is not None, reason=unavailable() or "")
def test_the_rank_that_refuses_prints_it(script: Path, tmp_path: Path) -> None:
    check_printed(mpirun_prints(script, tmp_path / "ckpt", "1"), 2, "restore of step 3: refused by rank 2")


def test_under_deeppart_run(script: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "deeppart", "run", "--ranks", "3", "--failures", "0", "--", sys.executable]
    command = [*words, str(script), str(tmp_path / "ckpt"), "3"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode == 1, run.stdout
    check_printed(run.stderr, 0, "the checkpoint has leaves that the live module lacks: model/backbone.weight")


@pytest.mark.now_and_then(4)
def test_under_torchrun(script: Path, tmp_path: Path) -> None:
    text = torchrun_prints(3, [script, tmp_path / "ckpt", "3"], expect_rc=1, anew=True)
    check_printed(text, 0, "the checkpoint has leaves that the live module lacks: model/backbone.weight")
