"""Data of the launcher and the scheduler about this process, and directories named after it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from deeppart.config.checks import refuse_url
from deeppart.errors import ConfigError


def expand_directory(template: str, *, node: str, rank: int, job: str) -> Path:
    """Fill in ``{node}``, ``{rank}``, ``{job}``, ``$VARIABLES`` and ``~``; returns an absolute path."""
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
    refuse_url(template, expanded)
    return Path(expanded).absolute()


def job_name() -> str:
    """The name of this job, for ``{job}``; "job" without a scheduler."""
    return scheduled_job() or "job"


def scheduled_job() -> str | None:
    """The scheduler's name for this job; None without a scheduler."""
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "TORCHELASTIC_RUN_ID"):
        if os.environ.get(name):
            return re.sub(r"[^\w.-]", "_", os.environ[name])
    return None


def epoch_of_run() -> tuple[str, int] | None:
    """The run of `deeppart run` that has started this process, and which of its starts this is; None without one."""
    run, epoch = os.environ.get("DEEPPART_RUN", ""), os.environ.get("DEEPPART_EPOCH", "")
    return (run, int(epoch)) if run and epoch.isdecimal() else None


@dataclass(frozen=True, slots=True)
class Launch:
    """Data of a launcher about this process.

    Attributes:
        launcher: its name, for messages.
        rank, size: of this process, and the number of processes.
        by_mpi: true if MPI connects the processes; otherwise they meet at a store of torch.
        place: host and port of that store; None if unknown.
    """

    launcher: str
    rank: int
    size: int
    by_mpi: bool
    place: tuple[str, int] | None = None


def launch() -> Launch | None:
    """The launcher's data about this process, or None if there was no launcher.

    Process managers of MPI are asked before Slurm's step variables, because mpirun inside a Slurm job starts its own
    daemons with srun; and before RANK, which scripts under mpirun set for torch. What torchrun has started is its own,
    even if mpirun has started torchrun.
    """
    place = _meeting_place()
    for launcher, rank_name, size_name, by_mpi in (
        ("torchrun", "RANK", "WORLD_SIZE", False),
        ("mpirun (PMI)", "PMI_RANK", "PMI_SIZE", True),
        ("mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", True),
        ("env://", "RANK", "WORLD_SIZE", False),
        ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", _has_process_manager()),
    ):
        if launcher == "torchrun" and "TORCHELASTIC_RUN_ID" not in os.environ:
            continue
        rank, size = os.environ.get(rank_name, ""), os.environ.get(size_name, "")
        if rank.isdigit() and size.isdigit():
            return Launch(launcher, int(rank), int(size), by_mpi, place)
    return None


def _has_process_manager() -> bool:
    """True if srun uses MPI to connect its processes (``--mpi=pmix``)."""
    return "PMIX_RANK" in os.environ


def _meeting_place() -> tuple[str, int] | None:
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    return (host, int(port)) if host and port.isdigit() and 0 < int(port) < 1 << 16 else None


def served_by_agent() -> bool:
    """True if torchrun serves the store at that address, rather than rank 0."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def restarts_at_one_store() -> int:
    """How often torchrun may start the ranks again with the same store; 0 if each start has a new one."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) if served_by_agent() else 0


def meeting_variables() -> str:
    """The two variables unchanged, for messages."""
    return ", ".join(f"{name}={os.environ.get(name, 'not set')}" for name in ("MASTER_ADDR", "MASTER_PORT"))


def socket_interface() -> str | None:
    """The name of the network interface on which ranks communicate without MPI; None if none is set."""
    return os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0] or None


def failure_domain() -> str:
    """The failure domain of this node as Slurm's topology plug-in tells it (``switch1.switch2.node7`` without the
    node); "" if it does not.
    """
    return os.environ.get("SLURM_TOPOLOGY_ADDR", "").rpartition(".")[0]


def node_name() -> str:
    """Name of this node as the scheduler calls it (several may share one host), otherwise the host name."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


@dataclass(frozen=True, slots=True)
class Allocation:
    """Nodes that Slurm has given to a job.

    Attributes:
        job: its number.
        nodes: as Slurm writes them: ``node[1-4,7]``.
    """

    job: str
    nodes: str


def allocation() -> Allocation | None:
    """What Slurm has given to this job, if this process may start others there; None in a step (which is a task of
    ``srun`` itself), where the job has this node alone, and where there is no Slurm.
    """
    job, nodes = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_JOB_NODELIST", "")
    if not job or not nodes or "SLURM_STEP_ID" in os.environ or nodes == os.environ.get("SLURMD_NODENAME"):
        return None
    return Allocation(job, nodes)
