"""A session that broke is closed, and the next one in the same processes works: with any MPI, or without.

A rank that MPI has lost takes MPI with it; ranks over sockets go on without it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import CheckpointError, CommError, DeeppartError
from tests.mpi.on_nodes import config
from tests.mpi.torchrun import with_variables
from tests.mpi.torchrun_job import tell
from tests.ports import free_ports

#: Over sockets MPI has no part in it.
LEVELS = ["multiple", *(pytest.param(each, marks=pytest.mark.of_mpi) for each in ("serialized", "funneled"))]
TIMEOUT_S = 60.0

pytestmark = pytest.mark.timeout(300)


def state(step: int) -> dict[str, Any]:
    return {"x": torch.full((300_000,), float(step)), "step": step}


def close(checkpointer: deeppart.Checkpointer) -> None:
    """With what was under way, or without."""
    with contextlib.suppress(DeeppartError):
        checkpointer.close()


def goes_on(directory: Path) -> tuple[int | None, float]:
    """The step and the value that a new session restores; it saves the next one."""
    with deeppart.Checkpointer(config(directory)) as again:
        live = state(0)
        step = again.restore(live)
        again.checkpoint(state((step or 0) + 1), (step or 0) + 1).wait("partner", timeout=TIMEOUT_S)
    return step, float(live["x"][-1])


def late(directory: Path) -> tuple[str, tuple[int | None, float]]:
    """The last rank comes to a checkpoint when the others have given up."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    warnings.simplefilter("ignore", deeppart.DeeppartWarning)
    ck = deeppart.Checkpointer(config(directory, timeout=8.0))
    ck.restore(state(0))
    ck.checkpoint(state(1), 1).wait(timeout=TIMEOUT_S)
    gave_up = [directory / f"gave-up-{rank}" for rank in range(comm.size - 1)]
    if comm.rank == comm.size - 1:
        ends = time.monotonic() + 2 * TIMEOUT_S
        while not all(path.exists() for path in gave_up) and time.monotonic() < ends:
            time.sleep(0.05)
        with contextlib.suppress(CommError):  # unless MPI has the others' share of that exchange
            with pytest.raises(CheckpointError):
                ck.checkpoint(state(2), 2).wait("local", timeout=TIMEOUT_S)
    with pytest.raises(CommError) as caught:
        ck.checkpoint(state(3), 3)
    if comm.rank < comm.size - 1:
        gave_up[comm.rank].touch()
    with pytest.raises(CommError, match="can no longer communicate"):
        ck.checkpoint(state(3), 3)
    close(ck)
    return caught.value.summary, goes_on(directory)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("level", LEVELS)
def test_a_rank_that_was_late_and_those_that_gave_up_go_on(run_ranks: Any, tmp_path: Path, level: str) -> None:
    found = run_ranks(3, late, tmp_path, env={"MPI4PY_RC_THREAD_LEVEL": level}, timeout=200).values
    assert [went_on for _, went_on in found] == [(1, 1.0)] * 3
    assert all("checkpoint(step=3)" in said and "for rank 2" in said for said, _ in found[:2]), found
    assert deeppart.load(tmp_path / "ckpt")["step"] == 2


def error_on_one(directory: Path) -> tuple[str, tuple[int | None, float]]:
    from mpi4py import MPI

    said, began = "", 0.0
    try:
        with deeppart.Checkpointer(config(directory)) as ck:
            ck.checkpoint(state(1), 1)
            if MPI.COMM_WORLD.rank == 1:
                raise ZeroDivisionError
            began = time.monotonic()
            ck.checkpoint(state(2), 2)
    except ZeroDivisionError:
        pass
    except CommError as error:
        said = error.summary
        assert time.monotonic() - began < TIMEOUT_S / 2, "long before the timeout"
    return said, goes_on(directory)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("level", LEVELS)
def test_an_exception_on_one_rank_ends_the_session_of_all(run_ranks: Any, tmp_path: Path, level: str) -> None:
    found = run_ranks(3, error_on_one, tmp_path, env={"MPI4PY_RC_THREAD_LEVEL": level}, timeout=200).values
    assert [went_on for _, went_on in found] == [(1, 1.0)] * 3, "what was begun together is complete"
    for rank, (said, _) in enumerate(found):
        assert "rank 1" in said or rank == 1, found


def without_the_dead(directory: Path, how: str, ports: list[int]) -> None:
    """One of three ranks: the last is killed, the others make a group of two."""
    rank, killed = int(os.environ["RANK"]), 2
    comm = _group(rank, 3, ports[0]) if how == "group" else None
    ck = deeppart.Checkpointer(config(directory), comm)
    ck.checkpoint(state(1), 1).wait("partner", timeout=TIMEOUT_S)
    if rank == killed:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(CommError) as caught:
        ck.checkpoint(state(2), 2)
    close(ck)
    took_s = time.monotonic() - began
    if how == "group":
        comm = _group(rank, 2, ports[1])
    else:
        os.environ |= {"WORLD_SIZE": "2", "MASTER_PORT": str(ports[1])}
    with deeppart.Checkpointer(config(directory), comm) as again:
        live = state(0)
        step = again.restore(live)
        again.checkpoint(state(2), 2).wait("partner", timeout=TIMEOUT_S)
    tell(directory, said=caught.value.summary, took_s=took_s, step=step, x=float(live["x"][-1]))


def _group(rank: int, size: int, port: int) -> Any:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    store = dist.TCPStore("127.0.0.1", port, size, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return dist.group.WORLD


@pytest.mark.sweep(2)
@pytest.mark.parametrize("how", ["environment", "group"])
def test_the_ranks_that_are_left_go_on_without_a_dead_one(tmp_path: Path, how: str) -> None:
    """Not started by torchrun, which would end them."""
    arguments: list[str | Path] = ["-m", __name__, tmp_path, how, *map(str, free_ports(2))]
    for found in with_variables(3, arguments, tmp_path, expect_rc=None)[:2]:
        assert "rank 2" in found["said"] and found["took_s"] < TIMEOUT_S / 2, found
        assert (found["step"], found["x"]) == (1, 1.0)
    assert deeppart.load(tmp_path / "ckpt")["step"] == 2


if __name__ == "__main__":
    without_the_dead(Path(sys.argv[1]), sys.argv[2], list(map(int, sys.argv[3:])))
