"""The harness must not lie: what fails, hangs or dies in a job is reported, soon, and leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mpi.launch import JobResult, start_ranks
from tests.mpi.outcomes import world
from tests.processes import is_running
from tests.waiting import wait_until

Run = Callable[..., JobResult]

#: What a busy machine may take for what does not wait: far below the limits on hanging jobs.
BUSY_S = 100.0


def fails_on_one(rank: int) -> None:
    comm = world()
    if comm.rank == rank:
        raise ValueError("the failing rank says so")
    comm.barrier()


def meets(directory: Path) -> None:
    comm = world()
    (directory / f"{comm.rank}.ready").touch()
    comm.recv(source=(comm.rank + 1) % comm.size)


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
    wait_until(lambda: not any(map(is_running, pids)), 3.0)
