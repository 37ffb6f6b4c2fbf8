"""The launcher there is: where, which, with what options, and in what environment it starts ranks."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What is started in place of a rank that a nursery forks.
STAND_IN = ROOT / "tests" / "mpi" / "stand_in.py"

#: Variables by which a launcher, or the shell around the tests, would reach into the job.
_FOREIGN = ("PMI_", "PMIX_", "OMPI_", "PRTE_", "MPI_LOCAL", "HYDRA_", "HYDI_", "SLURM_", "DEEPPART_")
_FOREIGN_NAMES = ("MPIEXEC_TIMEOUT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def find_mpiexec() -> Path | None:
    """The mpirun of this virtual environment, else the one on PATH."""
    beside = Path(sys.prefix) / "bin" / "mpirun"
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("mpirun") or shutil.which("mpiexec")
    return Path(found) if found else None


def unavailable() -> str | None:
    """Why no job can be started here, or None."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: pip install 'deeppart[mpich]'"
    if find_mpiexec() is None:
        return "no mpirun beside this Python nor on PATH: pip install 'deeppart[mpich]'"
    return None


@functools.cache
def is_hydra(launcher: Path) -> bool:
    """Whether the launcher is MPICH's (or a derivative's) rather than Open MPI's."""
    version = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False).stdout
    return "HYDRA" in version.upper()


def is_mpich() -> bool:
    """Whether MPICH starts the jobs: its ranks can have stand-ins, outlive one another, and be started by Slurm."""
    launcher = find_mpiexec()
    return launcher is not None and is_hydra(launcher)


def environment(extra: Mapping[str, str | None], timeout: float) -> dict[str, str]:
    """What a job's launcher and ranks find in their environment; ``extra`` sets variables, None unsets."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN) and k not in _FOREIGN_NAMES}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    env["PYTHONUNBUFFERED"] = "1"
    env["OMP_NUM_THREADS"] = "1"
    env["MPIEXEC_TIMEOUT"] = str(backstop(timeout))
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    env |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_mpi_yield_when_idle": "1"}
    env |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp"}
    for name, value in extra.items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def options(launcher: Path, timeout: float) -> list[str]:
    """Of a launcher, for a job that may take so many seconds."""
    if is_hydra(launcher):
        return ["-launcher", "fork"]  # never through a batch system that the tests happen to run in
    return ["--timeout", str(backstop(timeout))]


def backstop(timeout: float) -> int:
    """Seconds after which mpirun ends the job by itself, should this process be gone by then."""
    return int(timeout) + 20


def launched_ranks() -> int | None:
    """How many ranks the launcher of this very process started; None when none did."""
    size = os.environ.get("PMI_SIZE") or os.environ.get("OMPI_COMM_WORLD_SIZE")
    return int(size) if size else None
