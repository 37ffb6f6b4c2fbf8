"""Sessions that end in an exception, or never start: what they took from MPI and from the machine comes back."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.mpi import on_nodes
from tests.mpi.outcomes import world

#: Enough for a few sessions, not for all that follow.
COMMUNICATORS_LEFT = 4
SESSIONS = 32
TIMEOUT_S = 60.0
#: For a whole job, on a busy machine.
JOB_S = 280.0

pytestmark = pytest.mark.timeout(300)


def config(directory: Path) -> deeppart.Config:
    return on_nodes.config(directory, every={"local": 1, "partner": 1, "persistent": 1}, timeout=TIMEOUT_S)


def use_up_communicators(comm: Any) -> None:
    """Leave a few: a process that loses some at every session runs out of them soon."""
    from mpi4py import MPI

    taken = []
    with contextlib.suppress(MPI.Exception):
        for _ in range(2100):
            taken.append(comm.Dup())
    for each in taken[-COMMUNICATORS_LEFT:]:
        each.Free()


def usage() -> dict[str, int]:
    """What this process has of what sessions take."""
    gc.collect()
    threads = sum(thread.name.startswith("deeppart-") for thread in threading.enumerate())
    return {"threads": threads, "files": len(os.listdir("/proc/self/fd"))}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def settled(comm: Any, directory: Path, step: int) -> dict[str, int]:
    """One good session: whatever was left by the one before has come to its end."""
    with deeppart.Checkpointer(config(directory), comm) as ck:
        ck.checkpoint({"w": torch.zeros(50_000)}, step).wait()
    return usage()


def every_second_fails(directory: Path) -> dict[str, Any]:
    comm = world()
    use_up_communicators(comm)
    measured, memory = [], []
    for session in range(SESSIONS):
        state = {"w": torch.full((50_000,), float(session))}
        with contextlib.suppress(ZeroDivisionError):
            parent = comm.Dup() if session % 3 == 0 else comm  # between the same ranks is enough
            with deeppart.Checkpointer(config(directory), parent) as ck:
                ck.checkpoint(state, 2 * session)
                if session % 2:
                    1 / 0  # noqa: B018
        if parent is not comm:
            parent.Free()
        if session in (9, SESSIONS - 1):
            measured.append(settled(comm, directory, 2 * session + 1))
            memory.append(resident_bytes())
    return {"measured": measured, "grown": memory[1] - memory[0]}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_second_session_fails(run_ranks: Any, tmp_path: Path, ranks: int) -> None:
    for found in run_ranks(ranks, every_second_fails, tmp_path, timeout=JOB_S).values:
        early, late = found["measured"]
        assert early == late
        assert found["grown"] < 30 << 20
    assert deeppart.load(tmp_path / "ckpt")["w"][0].item() == 0.0, "the last one of all is a good one"


def one_rank_fails(directory: Path) -> tuple[str, dict[str, int]]:
    """The other closes as always: what was begun together is ended together."""
    comm = world()
    with contextlib.suppress(KeyError), deeppart.Checkpointer(config(directory), comm) as ck:
        pending = ck.checkpoint({"w": torch.ones(500_000)}, 1)
        if comm.rank == 1:
            raise KeyError
    if comm.rank == 1:
        pending.wait("persistent")
    return pending.report.levels["persistent"].state, settled(comm, directory, 2)


def test_one_rank_fails_and_the_others_close(run_ranks: Any, tmp_path: Path) -> None:
    for state, found in run_ranks(3, one_rank_fails, tmp_path, timeout=JOB_S).values:
        assert state == "done"
        assert found["threads"] == 0


def dropped(directory: Path) -> dict[str, int]:
    comm = world()
    use_up_communicators(comm)
    for session in range(SESSIONS):
        ck = deeppart.Checkpointer(config(directory), comm)
        ck.checkpoint({"w": torch.ones(50_000)}, session)
        del ck
        gc.collect()
    return settled(comm, directory, SESSIONS)


@pytest.mark.now_and_then(2)
def test_checkpointers_that_nobody_closes(run_ranks: Any, tmp_path: Path) -> None:
    for found in run_ranks(2, dropped, tmp_path, timeout=JOB_S).values:
        assert found["threads"] == 0


def ends_right_away(directory: Path) -> None:
    """The process ends while the background is at work."""
    ck = deeppart.Checkpointer(config(directory))
    with contextlib.suppress(KeyError), ck:
        ck.checkpoint({"w": torch.ones(3_000_000)}, 1)
        raise KeyError


@pytest.mark.parametrize("thread_level", ["multiple", "funneled"])
def test_a_process_may_end_while_its_background_works(run_ranks: Any, tmp_path: Path, thread_level: str) -> None:
    """A crash, a hang or an error at the end would be the job's exit code, or in what it printed."""
    result = run_ranks(2, ends_right_away, tmp_path, env={"MPI4PY_RC_THREAD_LEVEL": thread_level}, timeout=JOB_S)
    assert result.finished == [True, True] and not any(result.logs), result.output
