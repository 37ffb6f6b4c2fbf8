"""Starting the ranks of a benchmark under MPI, and ending them in any case."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
#: Variables by which a launcher, or the shell around the run, would reach into the ranks.
_FOREIGN = ("PMI_", "PMIX_", "OMPI_", "PRTE_", "HYDRA_", "HYDI_", "SLURM_", "DEEPPART_")
#: Copies of 1 MiB and more are written around the caches (glibc on x86).
BYPASS_CACHES = "glibc.cpu.x86_non_temporal_threshold=0x100000"


class CannotRunError(Exception):
    """Something is missing here; the message says what, and the way out."""


def add_bypass_caches(parser: argparse.ArgumentParser) -> None:
    """``--bypass-caches``; without it the figures are those of a user who sets nothing."""
    parser.add_argument("--bypass-caches", action="store_true", help="set GLIBC_TUNABLES for all ranks")


def tunables_of(options: argparse.Namespace) -> str:
    """What ``--bypass-caches`` sets for the ranks; empty without it."""
    return BYPASS_CACHES if options.bypass_caches else ""


def find_launcher(hosts: Sequence[str] = ()) -> list[str]:
    """The command that starts MPI ranks: beside this Python, else from PATH.

    Args:
        hosts: arguments of MPICH's that say on which hosts; none: on this one.

    Raises:
        CannotRunError: there is none, or it is another than MPICH's.
    """
    beside = Path(sys.prefix) / "bin" / "mpirun"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpirun") or shutil.which("mpiexec")
    if found is None:
        raise CannotRunError("no mpirun beside this Python nor on PATH: pip install 'deeppart[mpich]'")
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    if "HYDRA" in version.upper():
        return [found, *(hosts or ("-launcher", "fork"))]
    if hosts:
        raise CannotRunError(f"{found} is not MPICH's, which hosts of their own are started by")
    return [found]


def run_ranks(
    command: list[str], directory: str, timeout: float, environment: dict[str, str], output: IO[bytes] | None = None
) -> bool:
    """Run the launcher in a session of its own, and stop all of it after ``timeout`` seconds or an interrupt.

    Args:
        output: a file for what the ranks print, errors apart; None: the standard output of this process.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, cwd=directory, env=environment, start_new_session=True
    )
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        print(f"the ranks did not finish within {timeout:.0f} s and are stopped", file=sys.stderr)
        return False
    finally:
        _stop(process)
    if code != 0:
        print(f"MALFUNCTION, the ranks ended with exit code {code}; see above", file=sys.stderr)
    return code == 0


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End what is left; the ranks end with the launcher (see worker.py)."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def environment_of_ranks(timeout: float, tunables: str) -> dict[str, str]:
    """Variables of the ranks: none of a launcher around; this checkout, one thread, the C library's tunables."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    env |= {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "MPIEXEC_TIMEOUT": str(int(timeout) + 20)}
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if tunables:
        env["GLIBC_TUNABLES"] = tunables
    return env | {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
