"""Start N-rank MPI jobs from ordinary tests, and stop them whatever happens.

    result = run_ranks(3, work, tmp_path)          # work(tmp_path) on three ranks; AssertionError unless all is well
    assert result.values == [0, 1, 2]              # what each rank's work() returned

    with start_ranks(2, work, tmp_path) as job:    # the same, with the job in hand while it runs
        job.wait_for(tmp_path / "half-way")
        job.kill(1)
        result = job.wait(expect_rc=None)

The fixtures of the same names (tests/conftest.py) skip where MPI is missing; tests use those.

Invariants: a job never outlives its timeout nor its ``with`` block; only processes of the job are signalled, each by
its pid; a failure shows the output of every rank. Not a launcher for anything but tests on one host.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mpi.launchers import environment, find_mpiexec, is_hydra, options, unavailable
from tests.mpi.nurseries import borrowed, give_back

#: Names the process that ends a rank with its job, where it is not the rank's parent.
KEEPER = "RANKS_TEST_KEEPER"

#: Makes a rank print the stack of every thread (see rank_main.py).
STACKS_SIGNAL = signal.SIGUSR2

_LOG_LIMIT = 20_000
#: A job that hangs is ended after this; so long, because on a busy machine good ones take ten times as long as alone.
LIMIT_S = 300.0

_STARTED = time.time()
#: What a rank takes at most from making its shared memory to mapping it, in seconds: two calls, on a busy machine.
MAPPED_WITHIN_S = 5.0


@dataclass(frozen=True)
class JobResult:
    """How a job ended. Lists are in rank order.

    Attributes:
        returncode: exit code of mpirun.
        seconds: wall time from start to end.
        values: what the function returned on each rank; None where it did not return, and for scripts.
        finished: whether the rank reached its end without an exception.
        logs: stdout and stderr of each rank, in the order written.
        launcher: what mpirun itself printed.
        killed: rank -> signal name, for every ``job.kill``.
    """

    returncode: int
    seconds: float
    values: list[Any]
    finished: list[bool]
    logs: list[str]
    launcher: str
    killed: dict[int, str] = field(default_factory=dict)

    @property
    def output(self) -> str:
        """Everything that was printed, under a heading per rank."""
        texts = [("mpirun", self.launcher)]
        for rank, log in enumerate(self.logs):
            end = "finished" if self.finished[rank] else "did not finish"
            if rank in self.killed:
                end = f"killed by the test with {self.killed[rank]}"
            texts.append((f"rank {rank}, {end}", log))
        return "\n".join(f"--- {heading}\n{text[-_LOG_LIMIT:].rstrip()}" for heading, text in texts)


@dataclass(frozen=True)
class Process:
    """A process and when it started, in the kernel's ticks: another one with its pid is never signalled."""

    pid: int
    started: int

    @classmethod
    def running(cls, pid: int) -> Process:
        """The one that has this pid now."""
        return cls(pid, int(_stat_fields(pid)[19]))

    @classmethod
    def parsed(cls, text: str) -> Process:
        """From what ``str`` has made."""
        return cls(*map(int, text.split()))

    def __str__(self) -> str:
        return f"{self.pid} {self.started}"

    def signal(self, signum: int) -> bool:
        """Signal it if it still runs; whether it did."""
        try:
            fields = _stat_fields(self.pid)
            if fields[0] == "Z" or int(fields[19]) != self.started:
                return False
            os.kill(self.pid, signum)
        except OSError:  # it has ended, or the pid is another user's by now
            return False
        return True


def _stat_fields(pid: int) -> list[str]:
    """What the kernel tells of a process, from its state on (man 5 proc, field 3)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


class Job:
    """A running job; use as a context manager, which stops what is left of it."""

    def __init__(
        self,
        n: int,
        target: Callable[..., Any] | Path | str,
        *args: Any,
        timeout: float = LIMIT_S,
        env: Mapping[str, str | None] | None = None,
        mpiexec: str | Path | None = None,
        anew: bool = False,
    ) -> None:
        launcher = Path(mpiexec) if mpiexec else find_mpiexec()
        if launcher is None:
            raise FileNotFoundError(unavailable())
        self.n = n
        self.timeout = timeout
        self.killed: dict[int, str] = {}
        self.name, task = _task(target, args)
        self._directory = tempfile.TemporaryDirectory(prefix="ranks-")
        self._path = Path(self._directory.name)
        (self._path / "cwd").mkdir()
        (self._path / "task.pickle").write_bytes(task)
        self._started = time.monotonic()
        self._deadline = self._started + timeout
        variables = environment(env or {}, timeout)
        # Another launcher than MPICH's looks at its ranks' pids: it gets no stand-ins.
        self._nurseries = None if anew or not is_hydra(launcher) else borrowed(variables, n)
        with (self._path / "mpirun.log").open("wb") as log:
            self._launcher = subprocess.Popen(
                [str(launcher), *options(launcher, timeout), "-n", str(n), *self._rank()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._path / "cwd",
                env=variables,
                start_new_session=True,
            )

    def _rank(self) -> list[str]:
        """The command of a rank."""
        arguments = ["-m", "tests.mpi.rank_main", str(self._path)]
        if self._nurseries is None:
            return [sys.executable, "-m", "mpi4py", *arguments]
        return [*self._nurseries.python, *arguments]

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        if self._nurseries is not None:
            give_back(self._nurseries)
            self._nurseries = None
        sweep_shared_memory()
        self._directory.cleanup()

    def pid(self, rank: int, timeout: float = LIMIT_S) -> int:
        """Process id of a rank; waits until the rank has started."""
        return self._process(rank, timeout).pid

    def _process(self, rank: int, timeout: float = LIMIT_S) -> Process:
        file = self._path / f"rank-{rank}.pid"
        self.wait_for(file, timeout)
        return Process.parsed(file.read_text())

    def kill(self, rank: int, signum: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one rank, as a failing node or a scheduler would."""
        process = self._process(rank)
        self.killed[rank] = signum.name
        assert process.signal(signum), f"rank {rank} had ended before it could be killed\n{self._read().output}"

    def kill_keeper(self, rank: int) -> None:
        """Kill what would end a rank together with the job: mpirun's deputy on this host."""
        self.pid(rank)
        keeper = Process.parsed((self._path / f"rank-{rank}.keeper").read_text())
        name = Path(f"/proc/{keeper.pid}/comm").read_text()
        assert "proxy" in name or "prte" in name, name
        assert keeper.signal(signal.SIGKILL), f"nobody ends rank {rank} with the job\n{self._read().output}"

    def leave_behind(self, rank: int) -> None:
        """Kill what would end a rank together with the job, and forget it: it is the caller's from here on."""
        self.kill_keeper(rank)
        (self._path / f"rank-{rank}.pid").unlink()
        self._nurseries = None  # which it needs for as long as it lives

    def wait_for(self, condition: Path | Callable[[], Any], timeout: float = LIMIT_S) -> None:
        """Wait until a file exists or a function returns something true; fail when the job ends or hangs before."""
        holds = condition.exists if isinstance(condition, Path) else condition
        deadline = min(time.monotonic() + timeout, self._deadline)
        while not holds():
            if self._has_ended() and not holds():
                raise AssertionError(f"{self.name} ended before {condition}\n{self._read().output}")
            if time.monotonic() > deadline:
                self._give_up(f"{condition} did not happen in time")
            time.sleep(0.002)

    def _has_ended(self) -> bool:
        """Whether nothing of the job runs: ranks outlive an mpirun that has lost its deputy."""
        return self._launcher.poll() is not None and not any(each.signal(0) for each in self._processes().values())

    def log(self, rank: int) -> str:
        """What a rank has printed so far."""
        file = self._path / f"rank-{rank}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def wait(self, expect_rc: int | None = 0) -> JobResult:
        """Wait for the end of the job.

        Args:
            expect_rc: the exit code that is right; None for any.

        Raises:
            AssertionError: another exit code, or the job ran past its timeout; with everything it printed.
        """
        try:
            self._launcher.wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._give_up(f"it did not end within {self.timeout:g} s")
        result = self._read()
        if expect_rc is not None and result.returncode != expect_rc:
            raise AssertionError(
                f"{self.name} on {self.n} ranks: exit code {result.returncode}, expected {expect_rc}, "
                f"after {result.seconds:.1f} s\n{result.output}"
            )
        return result

    def stop(self) -> None:
        """End what is left of the job: its ranks, then mpirun."""
        if self._launcher.poll() is None:
            self._launcher.terminate()  # mpirun takes its ranks along, those that have not written a pid too
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._launcher.wait(3.0)
        for process in self._processes().values():
            process.signal(signal.SIGKILL)
        if self._launcher.poll() is None:
            self._launcher.kill()
            self._launcher.wait()
        gone_by = time.monotonic() + 3.0
        while time.monotonic() < gone_by and any(process.signal(0) for process in self._processes().values()):
            time.sleep(0.005)

    def _give_up(self, why: str) -> None:
        """Make the ranks that still run show where they are, stop the job, and raise."""
        running = [rank for rank, process in self._processes().items() if process.signal(STACKS_SIGNAL)]
        time.sleep(0.3)
        self.stop()
        ranks = ", ".join(map(str, running)) or "none"
        raise AssertionError(
            f"{self.name} on {self.n} ranks: {why}; ranks still running: {ranks}\n{self._read().output}"
        )

    def _processes(self) -> dict[int, Process]:
        files = {rank: self._path / f"rank-{rank}.pid" for rank in range(self.n)}
        return {rank: Process.parsed(file.read_text()) for rank, file in files.items() if file.exists()}

    def _read(self) -> JobResult:
        results = [_read_result(self._path / f"rank-{rank}.result") for rank in range(self.n)]
        code = self._launcher.poll()
        return JobResult(
            returncode=-1 if code is None else code,
            seconds=time.monotonic() - self._started,
            values=[value for _, value in results],
            finished=[finished for finished, _ in results],
            logs=[self.log(rank) for rank in range(self.n)],
            launcher=(self._path / "mpirun.log").read_text(errors="replace"),
            killed=dict(self.killed),
        )


def start_ranks(n: int, target: Callable[..., Any] | Path | str, *args: Any, **options: Any) -> Job:
    """Start ``target`` on ``n`` ranks and return at once.

    Args:
        n: number of ranks.
        target: a top-level function of an importable module, called with ``args`` on every rank (args and return
            values are pickled); or the path of a script, run with ``args`` as its command line.
        options: ``timeout`` in seconds; ``env``: variables to set, None unsets; ``mpiexec``: another launcher;
            ``anew``: ranks in interpreters of their own, that have imported nothing (see nursery.py).
    """
    return Job(n, target, *args, **options)


def run_ranks(
    n: int, target: Callable[..., Any] | Path | str, *args: Any, expect_rc: int | None = 0, **options: Any
) -> JobResult:
    """Run ``target`` on ``n`` ranks to its end: :func:`start_ranks` and :meth:`Job.wait`."""
    with start_ranks(n, target, *args, **options) as job:
        return job.wait(expect_rc)


def run_python(
    script: str, *arguments: str, env: Mapping[str, str] | None = None, timeout: float = LIMIT_S
) -> subprocess.CompletedProcess[str]:
    """Do as ``python -c SCRIPT ARGUMENT...`` does, in a process that has imported torch and the library already.

    It ends as any interpreter. Not for tests of what is imported when, nor where its pid matters.

    Args:
        env: its environment; None: that of this process.
        timeout: in seconds.
    """
    nurseries = borrowed(environment({}, timeout), 1)
    python = [sys.executable] if nurseries is None else nurseries.python
    command = [*python, "-c", textwrap.dedent(script), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=env)
    finally:
        if nurseries is not None:
            give_back(nurseries)


def sweep_shared_memory(directory: Path = Path("/dev/shm")) -> None:
    """Remove the files that killed MPICH ranks have left in memory: ours, of this process's time, mapped by nobody.

    None that is new: a job that starts beside this one makes its file before it maps it, and would wait for it until
    the end of time.
    """
    candidates = []
    for file in directory.glob("mpich_shm_*"):
        with contextlib.suppress(OSError):
            status = file.stat()
            if status.st_uid == os.getuid() and _STARTED <= status.st_mtime <= time.time() - MAPPED_WITHIN_S:
                candidates.append(file)
    if not candidates:
        return
    mapped: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):  # no further: it fails on one that ends at that moment
        with contextlib.suppress(OSError):
            lines = (process / "maps").read_text().splitlines()
            mapped.update(line.split()[-1] for line in lines if "/mpich_shm_" in line)
    for file in candidates:
        if str(file) not in mapped:
            file.unlink(missing_ok=True)


def _task(target: Callable[..., Any] | Path | str, args: tuple[Any, ...]) -> tuple[str, bytes]:
    """What the ranks are to do: a name for it, and the pickle that rank_main.py reads."""
    if isinstance(target, Path | str):
        script = Path(target).resolve(strict=True)
        return script.name, pickle.dumps({"script": str(script), "args": [str(arg) for arg in args]})
    if "<" in target.__qualname__:
        raise ValueError(f"{target.__qualname__} is not a top-level function: the ranks cannot import it")
    name = f"{target.__module__}:{target.__qualname__}"
    return name, pickle.dumps({"function": name, "args": args})


def _read_result(file: Path) -> tuple[bool, Any]:
    """(finished, returned value) of one rank."""
    if not file.exists():
        return False, None
    return True, pickle.loads(file.read_bytes())
