"""Sessions that end in an exception, or never start: what they took from MPI and from the machine comes back."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.comm import mpi
from deeppart.errors import CommError, PeerTimeoutError
from tests.mpi import over_sockets
from tests.mpi.patience import patient_barrier

#: Enough for a few sessions, not for all that follow.
COMMUNICATORS_LEFT = 30
SESSIONS = 60
TIMEOUT_S = 60.0
#: Channels that a process keeps for its next session: without MPI a session's are closed with it.
KEPT = 0 if over_sockets.is_chosen() else 4
#: For a whole job, on a busy machine.
JOB_S = 280.0

pytestmark = pytest.mark.timeout(300)


def world() -> Any:
    from mpi4py import MPI

    return MPI.COMM_WORLD


def config(directory: Path, **settings: Any) -> deeppart.Config:
    every = {"local": 1, "partner": 1, "persistent": 1}
    local = str(directory / "local" / "{node}")
    defaults: dict[str, Any] = {"local_dir": local, "node_size": 1, "every": every, "timeout": TIMEOUT_S}
    return deeppart.Config(persistent_dir=str(directory / "ckpt"), **(defaults | settings))


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
    channels = sum(len(pool._channels) for pool in mpi._process._pools.values())
    lost = sum(pool._lost for pool in mpi._process._pools.values())
    threads = sum(thread.name.startswith("deeppart-") for thread in threading.enumerate())
    return {"channels": channels, "lost": lost, "threads": threads, "files": len(os.listdir("/proc/self/fd"))}


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def settled(comm: Any, directory: Path, step: int, **settings: Any) -> dict[str, int]:
    """One good session: whatever was left by the one before has come to its end."""
    with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
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
        assert early == late and late["lost"] == 0 and late["channels"] <= 6
        assert found["grown"] < 30 << 20
    assert deeppart.load(tmp_path / "ckpt")["w"][0].item() == 0.0, "the last one of all is a good one"


def in_the_middle(directory: Path) -> tuple[dict[str, str], dict[str, int]]:
    """Rank 0 waits for rank 1 in the background when both fail; the exchange ends all the same."""
    comm = world()
    go_on = threading.Event()
    settled(comm, directory, 1)
    try:
        with deeppart.Checkpointer(config(directory), comm) as ck:
            partner = ck._session.node_levels["partner"]
            real = partner.open_part

            def late(*arguments: Any) -> Any:
                assert go_on.wait(TIMEOUT_S)
                return real(*arguments)

            if comm.rank == 1:
                partner.open_part = late  # type: ignore[method-assign, assignment]
            pending = ck.checkpoint({"w": torch.ones(500_000)}, 2)
            pending.wait("local")
            while pending.report.levels["partner"].state != "running":
                time.sleep(0.001)
            raise KeyError("the caller's own error")
    except KeyError:
        pass
    go_on.set()
    found = settled(comm, directory, 3)
    return {level: report.state for level, report in pending.report.levels.items()}, found


def test_a_failure_in_the_middle_of_an_exchange_breaks_nothing_off(run_ranks: Any, tmp_path: Path) -> None:
    for states, found in run_ranks(2, in_the_middle, tmp_path, timeout=JOB_S).values:
        assert states == {"local": "done", "partner": "done", "parity": "off", "persistent": "done"}
        assert found["lost"] == 0 and found["channels"] == KEPT and found["threads"] == 0


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
        assert found["lost"] == 0 and found["channels"] == KEPT and found["threads"] == 0


def broken_off(directory: Path) -> list[dict[str, int]]:
    """Rank 1 makes no checkpoint, rank 0 waits for it in vain: that channel is lost, and no other."""
    comm = world()
    found = [settled(comm, directory, 1)]
    for session in range(2, 5):
        with contextlib.suppress(PeerTimeoutError), deeppart.Checkpointer(config(directory, timeout=1.0), comm) as ck:
            if comm.rank == 0:
                ck.checkpoint({"w": torch.ones(50_000)}, 10 * session)
        patient_barrier(comm)
        found.append(settled(comm, directory, session))
    return found


@pytest.mark.of_mpi
def test_what_was_broken_off_is_lost_and_counted(run_ranks: Any, tmp_path: Path) -> None:
    for rank, found in enumerate(run_ranks(2, broken_off, tmp_path, timeout=JOB_S).values):
        assert [each["lost"] for each in found] == [0, 1, 2, 3], rank
        assert {each["channels"] for each in found} == {4}


def starts_that_fail(directory: Path) -> dict[str, int]:
    comm = world()
    use_up_communicators(comm)
    (directory / "file").touch()
    for _ in range(SESSIONS):
        for settings in ({"local_dir": "$NOT_SET_ANYWHERE/x"}, {"keep": {"local": 1 + comm.rank}}, one_bad(directory)):
            with pytest.raises(deeppart.DeeppartError):
                deeppart.Checkpointer(config(directory, **settings), comm)
    return settled(comm, directory, 1)


def one_bad(directory: Path) -> dict[str, Any]:
    """Rank 1 alone cannot use its directory."""
    return {"local_dir": str(directory / ("file" if world().rank == 1 else "good"))}


def test_starts_that_fail(run_ranks: Any, tmp_path: Path) -> None:
    for found in run_ranks(2, starts_that_fail, tmp_path, timeout=JOB_S).values:
        assert found["lost"] == 0 and found["channels"] == KEPT


def late_start(directory: Path) -> list[Any]:
    """Rank 1 comes when rank 0 has given up: neither's first try succeeds, their second does."""
    comm = world()
    found: list[Any] = []
    for attempt in range(2):
        if comm.rank == 1:
            while not (directory / f"given-up-{attempt}").exists():
                time.sleep(0.001)
        with pytest.raises(CommError):  # of the timeout, or since the other one has abandoned the channel
            deeppart.Checkpointer(config(directory, timeout=0.5), comm)
        if comm.rank == 0:
            (directory / f"given-up-{attempt}").touch()
        found.append(settled(comm, directory, attempt))
    return found


def test_a_start_that_was_given_up_does_not_stand_in_the_way(run_ranks: Any, tmp_path: Path) -> None:
    for found in run_ranks(2, late_start, tmp_path, timeout=JOB_S).values:
        assert [each["channels"] for each in found] == [KEPT, KEPT]


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
        assert found["lost"] == 0 and found["channels"] <= 6 and found["threads"] == 0


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


def too_many_lost(directory: Path) -> str:
    comm = world()
    settled(comm, directory, 1)
    (pool,) = mpi._process._pools.values()
    if comm.rank == 1:
        pool._lost = 10_000
    with pytest.raises(CommError) as caught:
        settled(comm, directory, 2)
    return str(caught.value)


@pytest.mark.of_mpi
def test_the_bound_is_told_before_mpi_ends_the_job(run_ranks: Any, tmp_path: Path) -> None:
    for text in run_ranks(2, too_many_lost, tmp_path, timeout=JOB_S).values:
        assert "10000 channels" in text and "start the processes again" in text
