"""srun without any MPI: the ranks meet where MASTER_ADDR says, or are told what to set."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import deeppart
from tests.mpi.launchers import ROOT
from tests.mpi.test_torchrun import SCRIPT
from tests.mpi.torchrun_job import equal, state
from tests.ports import free_port
from tests.slurm.rig import Rig

pytestmark = [pytest.mark.slurm, pytest.mark.xdist_group("slurm")]

FOUR_NODES = ("--mpi=none", "--nodes=4", "--ntasks=4")


def srun(rig: Rig, what: str, directory: Path, **variables: str) -> None:
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables
    rig.srun(*FOUR_NODES, sys.executable, str(SCRIPT), what, str(directory), env=env)


def test_the_ranks_meet_at_the_place_that_is_set(slurm: Rig, tmp_path: Path) -> None:
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    srun(slurm, "save", tmp_path, **place)
    told = [json.loads((tmp_path / f"told-{rank}.json").read_text()) for rank in range(4)]
    assert told == [{"ranks": 4, "rank": rank, "mpi": False} for rank in range(4)]
    srun(slurm, "restore", tmp_path, **place)
    assert all(json.loads((tmp_path / f"told-{rank}.json").read_text())["equal"] for rank in range(4))
    assert equal(deeppart.load(tmp_path / "ckpt"), state(2))


def test_without_a_place_nothing_is_written(slurm: Rig, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="started 4 processes, but nothing tells") as caught:
        srun(slurm, "save", tmp_path)
    assert "set MASTER_ADDR and MASTER_PORT" in str(caught.value) and "--mpi=pmi2" in str(caught.value)
    assert not list(tmp_path.iterdir())
