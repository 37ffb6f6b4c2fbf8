"""What launchers and schedulers say of this process, and directories named after it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from deeppart.config import (
    Allocation,
    Config,
    Launch,
    allocation,
    expand_directory,
    job_name,
    launch,
    node_name,
    socket_interface,
)
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


@pytest.mark.parametrize("url", ["s3://bucket/run", "gs://b", "file:///scratch/run", "HDFS+x://n:1/r"])
def test_a_url_is_no_directory(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was one, below ``./s3:``."""
    for name in ("persistent_dir", "local_dir"):
        for given in (url, Path(url)):
            with pytest.raises(ConfigError, match=f"{name} is a URL") as caught:
                Config(**{name: given})  # type: ignore[arg-type]
            assert "mount" in str(caught.value)
    monkeypatch.setenv("BUCKET", url)
    with pytest.raises(ConfigError, match=r"BUCKET.* is a URL"):
        expand_directory("$BUCKET/run", node="n", rank=0, job="j")
    for sound in ("/a/s3://x", "12:30/run", "a:b", "./s3:/x"):
        assert Config(persistent_dir=sound).persistent_dir == sound


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


LAUNCHERS = """PMI_RANK PMI_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE PMIX_RANK RANK WORLD_SIZE SLURM_PROCID
SLURM_STEP_NUM_TASKS MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID""".split()
PLACE = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
PMI, TORCHRUN = {"PMI_RANK": "3", "PMI_SIZE": "8"}, {"RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}
ENV, SRUN = {"RANK": "1", "WORLD_SIZE": "4"}, {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}
AT = ("node1", 29500)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        (PLACE, None),
        ({"RANK": "1"}, None),
        (ENV, Launch("env://", 1, 4, False)),
        (ENV | PLACE, Launch("env://", 1, 4, False, AT)),
        (ENV | PLACE | {"MASTER_PORT": "no"}, Launch("env://", 1, 4, False)),
        (ENV | PLACE | {"MASTER_PORT": "70000"}, Launch("env://", 1, 4, False)),
        (SRUN, Launch("srun", 0, 2, False)),
        (SRUN | PLACE, Launch("srun", 0, 2, False, AT)),
        (SRUN | {"PMIX_RANK": "0"}, Launch("srun", 0, 2, True)),
        (SRUN | ENV, Launch("env://", 1, 4, False)),
        (SRUN | PMI, Launch("mpirun (PMI)", 3, 8, True)),
        (PMI | ENV | PLACE, Launch("mpirun (PMI)", 3, 8, True, AT)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}, Launch("mpirun (Open MPI)", 3, 8, True)),
        (PMI | {"PMI_RANK": "x"} | ENV, Launch("env://", 1, 4, False)),
        (PMI | TORCHRUN | PLACE, Launch("torchrun", 1, 4, False, AT)),
        (SRUN | TORCHRUN | PLACE, Launch("torchrun", 1, 4, False, AT)),
    ],
)
def test_the_launcher_is_recognized(
    variables: dict[str, str], expected: Launch | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launch() == expected


def test_the_interface_of_gloo_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert socket_interface() is None
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0,eth0")
    assert socket_interface() == "ib0"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "7"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]"}, Allocation("7", "node[1-2]")),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURMD_NODENAME": "n1"}, Allocation("7", "n[1-2]")),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1"}, Allocation("7", "node1")),  # of salloc, elsewhere
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1", "SLURMD_NODENAME": "node1"}, None),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_STEP_ID": "0"}, None),
    ],
)
def test_an_allocation_is_one_where_others_can_be_started(
    variables: dict[str, str], expected: Allocation | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURMD_NODENAME", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert allocation() == expected
