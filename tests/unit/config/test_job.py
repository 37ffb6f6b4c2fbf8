"""What launchers and schedulers say of this process, and directories named after it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from deeppart.config import Config
from deeppart.config.job import expand_directory, job_name, launcher_world, node_name
from deeppart.errors import ConfigError

pytestmark = pytest.mark.usefixtures("empty_directory")


# --- directories ------------------------------------------------------------------------------------------------------


def test_placeholders_variables_and_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    monkeypatch.setenv("HOME", "/home/me")
    expand: dict[str, Any] = {"node": "n7", "rank": 12, "job": "4711"}
    assert expand_directory("$SCRATCH/{job}/{node}.{rank}", **expand) == Path("/scratch/me/4711/n7.12")
    assert expand_directory("${SCRATCH}/x", **expand) == Path("/scratch/me/x")
    assert expand_directory("~/x", **expand) == Path("/home/me/x")
    assert expand_directory("x", **expand) == Path.cwd() / "x"
    with pytest.raises(ConfigError, match="NOWHERE"):
        expand_directory("$NOWHERE/x", **expand)
    with pytest.raises(ConfigError, match="NOWHERE"):
        expand_directory("${NOWHERE}/{rank}", **expand)
    assert Config(local_dir="${SCRATCH}/{node}").local_dir == "${SCRATCH}/{node}"


def test_a_variable_may_hold_braces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a variable expands to is a directory, not a template."""
    monkeypatch.setenv("ODD", "/a{rank}b")
    assert expand_directory("$ODD/{rank}", node="n", rank=3, job="j") == Path("/a{rank}b/3")


SCHEDULERS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "TORCHELASTIC_RUN_ID")


def test_the_job_name_is_the_schedulers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SCHEDULERS:
        monkeypatch.delenv(name, raising=False)
    assert job_name() == "job"
    for name in reversed(SCHEDULERS):
        monkeypatch.setenv(name, f"{name}/1[2]")
        assert job_name() == f"{name}_1_2_", "safe as a directory name"


def test_the_node_is_the_schedulers_or_the_host(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert node_name() == os.uname().nodename
    monkeypatch.setenv("SLURMD_NODENAME", "node3")
    assert node_name() == "node3"


def test_the_launcher_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "RANK", "WORLD_SIZE")
    for name in (*names, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    assert launcher_world() is None
    monkeypatch.setenv("RANK", "1")
    assert launcher_world() is None
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert launcher_world() == ("torchrun", 1, 4)
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert launcher_world() == ("torchrun", 1, 4)
    monkeypatch.setenv("PMI_RANK", "3")
    monkeypatch.setenv("PMI_SIZE", "8")
    assert launcher_world() == ("mpirun (PMI)", 3, 8)
    monkeypatch.setenv("PMI_RANK", "x")
    assert launcher_world() == ("torchrun", 1, 4)
