"""The harness must not lie: what fails, hangs or dies in a job is reported, soon, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mpi import launch, launchers, nurseries
from tests.mpi.launch import JobResult, start_ranks
from tests.mpi.launchers import ROOT

Run = Callable[..., JobResult]

#: What a busy machine may take for what does not wait: far below the limits on hanging jobs.
BUSY_S = 100.0


def world() -> Any:
    from mpi4py import MPI

    return MPI.COMM_WORLD


def sums(add: int) -> tuple[int, int]:
    comm = world()
    print(f"hello from {comm.rank}")
    return comm.rank, comm.allreduce(comm.rank + add)


def fails_on_one(rank: int) -> None:
    comm = world()
    if comm.rank == rank:
        raise ValueError("the failing rank says so")
    comm.barrier()


def leaves_with(code: int) -> None:
    comm = world()
    if comm.rank == 1:
        raise SystemExit(code)
    comm.barrier()


def hangs() -> None:
    comm = world()
    if comm.rank == 1:
        time.sleep(600)
    comm.barrier()


def meets(directory: Path) -> None:
    comm = world()
    (directory / f"{comm.rank}.ready").touch()
    comm.recv(source=(comm.rank + 1) % comm.size)


def environment() -> dict[str, str]:
    return dict(os.environ)


def inner_pytest(directory: Path) -> None:
    options = ["-c", str(ROOT / "setup.cfg"), f"--rootdir={directory}", "-p", "no:cacheprovider"]
    plugins = ["-p", "tests.conftest", "-p", "tests.mpi.conftest"]
    raise SystemExit(pytest.main([*options, *plugins, str(directory)]))


@pytest.mark.parametrize("anew", [False, True], ids=["from nurseries", "anew"])
def test_passing_job(run_ranks: Run, anew: bool) -> None:
    result = run_ranks(3, sums, 10, anew=anew)
    assert result.values == [(0, 33), (1, 33), (2, 33)]
    assert result.finished == [True] * 3
    assert [log.strip() for log in result.logs] == ["hello from 0", "hello from 1", "hello from 2"]


def test_script(run_ranks: Run, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys; from mpi4py import MPI; print(MPI.COMM_WORLD.size, *sys.argv[1:])")
    assert [log.strip() for log in run_ranks(2, script, "--steps", 3).logs] == ["2 --steps 3"] * 2


def test_failing_rank_ends_the_job(run_ranks: Run) -> None:
    with pytest.raises(AssertionError, match="the failing rank says so") as failure:
        run_ranks(3, fails_on_one, 2)
    assert "exit code 1, expected 0" in str(failure.value)
    assert "--- rank 2, did not finish" in str(failure.value)
    result = run_ranks(3, fails_on_one, 0, expect_rc=None, anew=True)
    assert result.returncode != 0
    assert result.seconds < BUSY_S
    assert not any(result.finished)


def test_exit_code_of_a_rank(run_ranks: Run) -> None:
    assert run_ranks(2, leaves_with, 7, expect_rc=7).seconds < BUSY_S


def test_hanging_job_ends(run_ranks: Run) -> None:
    began = time.monotonic()
    with pytest.raises(AssertionError, match="did not end within 2 s"):
        run_ranks(1, time.sleep, 600, timeout=2)
    assert time.monotonic() - began < BUSY_S


def test_hanging_job_ends_with_stacks(run_ranks: Run, tmp_path: Path) -> None:
    with start_ranks(3, meets, tmp_path) as job:
        for rank in range(3):
            job.wait_for(tmp_path / f"{rank}.ready")
        job._deadline = time.monotonic()
        with pytest.raises(AssertionError, match="ranks still running: 0, 1, 2") as failure:
            job.wait()
    assert str(failure.value).count("in meets") == 3


def test_hanging_condition(run_ranks: Run, tmp_path: Path) -> None:
    with start_ranks(2, hangs) as job:
        pids = [job.pid(0), job.pid(1)]
        with pytest.raises(AssertionError, match="never did not happen in time"):
            job.wait_for(tmp_path / "never", timeout=0.5)
    assert_gone(pids)


def test_killed_rank_is_reported(run_ranks: Run, tmp_path: Path) -> None:
    with start_ranks(3, meets, tmp_path) as job:
        for rank in range(3):
            job.wait_for(tmp_path / f"{rank}.ready")
        pids = [job.pid(rank) for rank in range(3)]
        job.kill(1)
        result = job.wait(expect_rc=None)
    assert result.returncode != 0
    assert "--- rank 1, killed by the test with SIGKILL" in result.output
    assert result.finished == [False] * 3
    assert_gone(pids)


def test_job_ends_with_its_block(run_ranks: Run) -> None:
    with start_ranks(2, hangs) as job:
        pids = [job.pid(0), job.pid(1)]
    assert_gone(pids)


def test_environment(run_ranks: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEPPART_TIMEOUT", "1")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("GONE", "1")
    for env in run_ranks(2, environment, env={"MINE": "1", "GONE": None}).values:
        assert env["OMP_NUM_THREADS"] == "1"
        assert env["MINE"] == "1"
        assert not {"GONE", "DEEPPART_TIMEOUT", "SLURM_JOB_ID"} & env.keys()


def what_was_there() -> dict[str, Any]:
    """What an interpreter that has just started has not, or has of its own."""
    import numpy

    open_files = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return {
        "imported": sorted({"mpi4py.MPI", "tests.conftest", "hypothesis"} & sys.modules.keys()),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "leads its session": os.getsid(0) == os.getpid(),
        "files": sorted(Path(os.readlink(path)).name.partition(":")[0] for path in open_files if path.exists()),
        "order": list({str(number) for number in range(100)}),
        "chance": [random.random(), numpy.random.random()],
        "rank": world().rank,
    }


def test_ranks_from_nurseries_are_like_new(run_ranks: Run) -> None:
    new, *others = (run_ranks(3, what_was_there, anew=anew).values for anew in (True, False, False))
    for found in itertools.chain(*others):
        for what in ("imported", "threads", "leads its session", "files"):
            assert found[what] == new[found["rank"]][what], what
    for job in (new, *others):
        orders = [tuple(found["order"]) for found in job]
        assert orders[0] != orders[1] != orders[2], "sets of names come in another order on the next rank"
    chance = [number for job in (new, *others) for found in job for number in found["chance"]]
    assert len(set(chance)) == len(chance)


SCRIPT = """
    import atexit, os, signal, sys

    atexit.register(print, "the end")
    assert __name__ == "__main__" and "" in sys.path
    print(sys.argv, os.environ["OWN"])
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    unknown if sys.argv[1] == "raises" else sys.exit(3)
"""


@pytest.mark.parametrize(("way", "code"), [("ends", 3), ("raises", 1), ("killed", -signal.SIGKILL)])
def test_scripts_end_as_those_of_an_interpreter(
    run_python: Callable[..., subprocess.CompletedProcess[str]], way: str, code: int
) -> None:
    environment = os.environ | {"OWN": "its own", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), way]
    new = subprocess.run(command, capture_output=True, text=True, timeout=BUSY_S, check=False, env=environment)
    found = run_python(SCRIPT, way, env=environment)
    assert found.returncode == new.returncode == code
    assert found.stdout == new.stdout and ("the end" in found.stdout) == (way != "killed")
    assert found.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


def naps(directory: Path) -> None:
    signal.signal(signal.SIGUSR1, lambda *ignored: (directory / "heard").touch())
    (directory / "ready").touch()
    for _ in range(6000):
        time.sleep(0.1)


with_stand_ins = pytest.mark.skipif(not launchers.is_mpich(), reason="another launcher's ranks are its own processes")


@with_stand_ins
def test_a_rank_hears_the_signals_of_its_stand_in_and_ends_with_it(run_ranks: Run, tmp_path: Path) -> None:
    with start_ranks(1, naps, tmp_path) as job:
        job.wait_for(tmp_path / "ready")
        (stand_in,) = stand_ins(job)
        os.kill(stand_in, signal.SIGUSR1)
        job.wait_for(tmp_path / "heard")
        pid = job.pid(0)
        os.kill(stand_in, signal.SIGKILL)
        assert_gone([pid])
        assert job.wait(expect_rc=None).returncode != 0


@pytest.fixture
def own_nurseries(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Any, nurseries.Nurseries]]:
    """None yet. They import nothing, and those that other tests share stay as they are."""
    own: dict[Any, nurseries.Nurseries] = {}
    monkeypatch.setattr(nurseries, "_nurseries", own)
    monkeypatch.setattr(nurseries, "MODULES", ())
    yield own
    for each in own.values():
        each.close()


@with_stand_ins
def test_ranks_end_with_their_nursery(
    own_nurseries: dict[Any, nurseries.Nurseries], run_ranks: Run, tmp_path: Path
) -> None:
    with start_ranks(1, naps, tmp_path) as job:
        job.wait_for(tmp_path / "ready")
        (own,) = own_nurseries.values()
        own._processes[0].kill()
        assert_gone([job.pid(0)])
        result = job.wait(expect_rc=None)
        assert result.returncode != 0 and "nursery 0 has ended" in result.launcher
    assert run_ranks(1, sums, 1).values == [(0, 1)], "another one is started"


@with_stand_ins
def test_nurseries_of_few_environments_are_kept_and_those_in_use_always(
    own_nurseries: dict[Any, nurseries.Nurseries], run_ranks: Run, tmp_path: Path
) -> None:
    with start_ranks(1, naps, tmp_path, env={"PYTHONHASHSEED": "0"}) as job:
        job.wait_for(tmp_path / "ready")
        for seed in "123":
            run_ranks(1, time.sleep, 0, env={"PYTHONHASHSEED": seed})
        seeds = [dict(key)["PYTHONHASHSEED"] for key in own_nurseries]
        assert seeds == ["0", "2", "3"] and len(seeds) == nurseries._MOST
        job.kill(0)  # it lives


def stand_ins(job: launch.Job) -> list[int]:
    """What mpirun has started in place of the ranks."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            words = (process / "cmdline").read_bytes().split(b"\0")
            if words[1:3] == [b"-I", b"-S"] and str(job._path).encode() in words:
                found.append(int(process.name))
    return found


def test_inner_functions_are_refused() -> None:
    with pytest.raises(ValueError, match="not a top-level function"):
        start_ranks(2, lambda: None)


@pytest.mark.mpi(min_size=2)
def test_pytest_on_every_rank() -> None:
    comm = world()
    assert comm.allgather(comm.rank) == list(range(comm.size))


FAILS_ON_ONE = """
import pytest
from mpi4py import MPI

@pytest.mark.mpi
def test_fails_on_one():
    assert MPI.COMM_WORLD.rank == 0, "rank 1 differs"
    MPI.COMM_WORLD.barrier()
"""

HANGS = """
import pytest
from mpi4py import MPI

@pytest.mark.mpi
@pytest.mark.timeout(0.2)
def test_hangs():
    MPI.COMM_WORLD.recv(source=MPI.COMM_WORLD.rank)
"""


def test_failure_on_one_rank_ends_pytest(run_ranks: Run, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(FAILS_ON_ONE)
    result = run_ranks(2, inner_pytest, tmp_path, expect_rc=None)
    assert result.returncode == 1
    assert "rank 1 of 2: test_one.py::test_fails_on_one failed in call" in result.logs[1]
    assert "rank 1 differs" in result.logs[1]


def test_hang_ends_pytest(run_ranks: Run, tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(HANGS)
    result = run_ranks(2, inner_pytest, tmp_path, expect_rc=None)
    assert result.returncode != 0
    assert "in test_hangs" in result.output
    assert result.seconds < BUSY_S


def assert_gone(pids: list[int]) -> None:
    """The processes have ended, or do within a moment."""
    deadline = time.monotonic() + 3.0
    while alive := [pid for pid in pids if _is_alive(pid)]:
        assert time.monotonic() < deadline, f"still alive: {alive}"
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIG_DFL)  # 0: only asks
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):  # it may end between any two of these
        return False


def test_only_old_memory_that_nobody_maps_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that starts beside has made its file, but may not have mapped it: it would hang."""
    old, new, mapped, foreign = (tmp_path / name for name in ("mpich_shm_a", "mpich_shm_b", "mpich_shm_c", "other"))
    for file in (old, new, mapped, foreign):
        file.write_bytes(bytes(mmap.PAGESIZE))
    monkeypatch.setattr(launch, "_STARTED", time.time() - 10 * launch.MAPPED_WITHIN_S)
    for file in (old, mapped, foreign):
        os.utime(file, (time.time() - 2 * launch.MAPPED_WITHIN_S,) * 2)
    with mapped.open("r+b") as opened, mmap.mmap(opened.fileno(), 0):
        launch.sweep_shared_memory(tmp_path)
        assert [new.exists(), mapped.exists(), foreign.exists(), old.exists()] == [True, True, True, False]
    launch.sweep_shared_memory(tmp_path)
    assert [new.exists(), mapped.exists()] == [True, False]
