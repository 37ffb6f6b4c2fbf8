"""The launcher's and the scheduler's data about this process, and directories that are named after it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from deeppart.errors import ConfigError


def expand_directory(template: str, *, node: str, rank: int, job: str) -> Path:
    """Fill in ``{node}``, ``{rank}``, ``{job}``, ``$VARIABLES`` and ``~``; returns an absolute path.

    Raises:
        ConfigError: a variable is not set.
    """
    text = template.replace("{node}", node).replace("{rank}", str(rank)).replace("{job}", job)
    expanded = os.path.expanduser(os.path.expandvars(text))
    if "$" in expanded:
        raise ConfigError(
            "a directory names an environment variable that is not set",
            expected="every $VARIABLE to be set on this rank",
            found=repr(expanded),
            where=f"rank {rank}, template {template!r}",
            todo="export the variable in the job script, or write the directory out",
        )
    return Path(expanded).absolute()


def job_name() -> str:
    """The name of this job, for ``{job}``; "job" where no scheduler is found."""
    return scheduled_job() or "job"


def scheduled_job() -> str | None:
    """The scheduler's name for this job; None where no scheduler is found."""
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "TORCHELASTIC_RUN_ID"):
        if os.environ.get(name):
            return re.sub(r"[^\w.-]", "_", os.environ[name])
    return None


def launcher_world() -> tuple[str, int, int] | None:
    """The launcher's data about this process: (launcher, rank, world size), or None if there was no launcher.

    Process managers are asked before Slurm's step variables, because mpirun inside a Slurm job starts its own
    daemons with srun.
    """
    for launcher, rank_name, size_name in (
        ("mpirun (PMI)", "PMI_RANK", "PMI_SIZE"),
        ("mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("torchrun", "RANK", "WORLD_SIZE"),
        ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ):
        rank, size = os.environ.get(rank_name, ""), os.environ.get(size_name, "")
        if rank.isdigit() and size.isdigit():
            return launcher, int(rank), int(size)
    return None


def failure_domain() -> str:
    """The failure domain of this node as Slurm's topology plug-in tells it (``switch1.switch2.node7`` without the
    node); "" if it does not.
    """
    return os.environ.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")[0]


def node_name() -> str:
    """Name of this node as the scheduler calls it (several may share one host), otherwise the host name."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename
