"""The harness must not lie: what fails, hangs or dies in a job is reported, soon, and leaves nothing behind."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.launch import JobResult, start_ranks
from tests.mpi.launchers import ROOT

Run = Callable[..., JobResult]

#: What a busy machine may take for what does not wait: far below the limits on hanging jobs.
BUSY_S = 100.0


def world() -> Any:
    from mpi4py import MPI

    return MPI.COMM_WORLD


def fails_on_one(rank: int) -> None:
    comm = world()
    if comm.rank == rank:
        raise ValueError("the failing rank says so")
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


def inner_pytest(directory: Path) -> None:
    options = ["-c", str(ROOT / "setup.cfg"), f"--rootdir={directory}", "-p", "no:cacheprovider"]
    plugins = ["-p", "tests.conftest", "-p", "tests.mpi.conftest"]
    raise SystemExit(pytest.main([*options, *plugins, str(directory)]))


def test_failing_rank_ends_the_job(run_ranks: Run) -> None:
    with pytest.raises(AssertionError, match="the failing rank says so") as failure:
        run_ranks(3, fails_on_one, 2)
    assert "exit code 1, expected 0" in str(failure.value)
    assert "--- rank 2, did not finish" in str(failure.value)
    result = run_ranks(3, fails_on_one, 0, expect_rc=None, anew=True)
    assert result.returncode != 0
    assert result.seconds < BUSY_S
    assert not any(result.finished)


def test_hanging_job_ends_with_stacks(run_ranks: Run, tmp_path: Path) -> None:
    with start_ranks(3, meets, tmp_path) as job:
        for rank in range(3):
            job.wait_for(tmp_path / f"{rank}.ready")
        job._deadline = time.monotonic()
        with pytest.raises(AssertionError, match="ranks still running: 0, 1, 2") as failure:
            job.wait()
    assert str(failure.value).count("in meets") == 3


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
