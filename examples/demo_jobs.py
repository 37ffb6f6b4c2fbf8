"""Runs jobs for the demos, under mpirun or torchrun: starts them, watches them, kills a rank, leaves nothing behind."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

#: What a launcher or the shell around the demo would tell the ranks, too.
_FOREIGN = ("PMI_", "PMIX_", "OMPI_", "PRTE_", "MPI_LOCAL", "HYDRA_", "HYDI_", "SLURM_", "DEEPPART_", "TORCHELASTIC_")
_FOREIGN_NAMES = ("MPIEXEC_TIMEOUT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
#: Open MPI, as root and on fewer cores than ranks.
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
#: Every rank leaves its process id and becomes the program.
_START_RANK = 'echo $$ >"$0/rank-${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-$RANK}}}.pid"; exec "$@"'


class JobError(RuntimeError):
    """A job of the demo did not do what it was started for; the text holds what it printed."""


class Job:
    """A job of Python scripts under mpirun; use as a context manager, which ends what is left of it.

    Args:
        ranks: how many.
        arguments: what follows ``python -m mpi4py``.
        folder: for its output and process ids; made here.
        timeout: seconds after which it is ended, whatever it does.
    """

    def __init__(self, ranks: int, arguments: list[str], folder: Path, timeout: float) -> None:
        self.ranks = ranks
        self._folder = folder
        folder.mkdir(parents=True)
        self._deadline = time.monotonic() + timeout
        command = self._command(["/bin/sh", "-c", _START_RANK, str(folder), sys.executable], arguments)
        with (folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=_environment(os.environ, timeout),
                start_new_session=True,
            )

    def _command(self, start: list[str], arguments: list[str]) -> list[str]:
        """The launcher's command line: ``start`` is what starts Python as a rank."""
        launcher = mpirun()
        # Never through a batch system that the demo happens to be started in.
        options = ["-launcher", "fork"] if _is_hydra(launcher) else []
        return [str(launcher), *options, "-n", str(self.ranks), *start, "-m", "mpi4py", *arguments]

    @property
    def output(self) -> str:
        """What all ranks have printed so far."""
        return (self._folder / "output").read_text(errors="replace")

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Wait until the function returns something true.

        Raises:
            JobError: the job has ended before, or its time is up.
        """
        while not condition():
            if self._process.poll() is not None:
                raise JobError(f"the job ended before {what}:\n{self.output}")
            if time.monotonic() > self._deadline:
                raise JobError(f"time is up before {what}:\n{self.output}")
            time.sleep(0.001)

    def kill(self, rank: int) -> None:
        """SIGKILL for one rank."""
        pid = int((self._folder / f"rank-{rank}.pid").read_text())
        if self._process.poll() is not None or not self._is_mine(pid):
            raise JobError(f"rank {rank} has ended before it could be killed:\n{self.output}")
        os.kill(pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the end; returns the launcher's exit code.

        Raises:
            JobError: its time is up.
        """
        try:
            return self._process.wait(max(0.1, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise JobError(f"the job did not end in time:\n{self.output}") from None

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()  # the launcher ends its ranks
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)
        for pid in self._left():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        gone_by = time.monotonic() + 3.0
        while self._left() and time.monotonic() < gone_by:
            time.sleep(0.01)

    def _left(self) -> list[int]:
        """Ranks that still run."""
        pids = [int(file.read_text() or 0) for file in self._folder.glob("rank-*.pid")]
        return [pid for pid in pids if self._is_mine(pid)]

    def _is_mine(self, pid: int) -> bool:
        """Whether the process still is one of this job's: its working directory says so."""
        try:
            return os.readlink(f"/proc/{pid}/cwd") == os.path.realpath(self._folder)
        except OSError:
            return False


class TorchJob(Job):
    """The same under torchrun: the arguments are those of Python."""

    def _command(self, start: list[str], arguments: list[str]) -> list[str]:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks)]
        torchrun += ["--log-dir", str(self._folder / "torchrun")]  # or a temporary folder would be left
        program = [each.replace("$", "$$") for each in (*start, *arguments)]  # it has variables of its own
        return [*torchrun, "--no-python", *program]


def run(ranks: int, arguments: list[str], folder: Path, timeout: float, kind: type[Job] = Job) -> str:
    """Run a job to its end; returns what it printed.

    Raises:
        JobError: it failed, or did not end in time.
    """
    with kind(ranks, arguments, folder, timeout) as job:
        if code := job.wait():
            raise JobError(f"the job ended with exit code {code}:\n{job.output}")
        return job.output


def mpirun() -> Path:
    """The mpirun beside this Python, else the one on PATH.

    Raises:
        JobError: there is none.
    """
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpirun") or shutil.which("mpiexec")
    if found is None:
        raise JobError("no mpirun beside this Python nor on PATH: pip install 'deeppart[mpich,demo]'")
    return Path(found)


@functools.cache
def _is_hydra(launcher: Path) -> bool:
    """Whether the launcher is MPICH's rather than Open MPI's."""
    version = subprocess.run([launcher, "--version"], capture_output=True, text=True, check=False, timeout=30)
    return "HYDRA" in version.stdout.upper()


def _environment(outer: Mapping[str, str], timeout: float) -> dict[str, str]:
    env = {k: v for k, v in outer.items() if not k.startswith(_FOREIGN) and k not in _FOREIGN_NAMES}
    root = Path(__file__).resolve().parents[1]
    if (root / "deeppart" / "__init__.py").exists():  # a checkout, installed or not
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH")]))
    env |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "MPIEXEC_TIMEOUT": str(int(timeout) + 10)}
    return env | _OPEN_MPI


@contextlib.contextmanager
def swept_shared_memory() -> Iterator[None]:
    """Removes the files that killed MPICH ranks leave in memory: new, ours, and mapped by no process."""
    began = time.time()
    try:
        yield
    finally:
        _sweep(began)


def _sweep(began: float) -> None:
    left = []
    for file in Path("/dev/shm").glob("mpich_shm_*"):
        with contextlib.suppress(OSError):
            status = file.stat()
            if status.st_uid == os.getuid() and status.st_mtime >= began:
                left.append(file)
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps") if left else ():
        with contextlib.suppress(OSError):
            mapped |= {line.split()[-1] for line in maps.read_text().splitlines() if "/mpich_shm_" in line}
    for file in left:
        if str(file) not in mapped:
            file.unlink(missing_ok=True)
