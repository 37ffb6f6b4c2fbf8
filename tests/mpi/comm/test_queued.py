"""MPI libraries without MPI_THREAD_MULTIPLE: ranks meet only while the training thread is inside the library."""

from __future__ import annotations

import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.errors import CheckpointError
from tests.mpi.comm.funneled import SETTINGS, config, state

pytestmark = pytest.mark.of_mpi


def lose_nodes(directory: Path) -> dict[str, Any]:
    """Copies and parity are made inside the calls, and what nodes held that are lost is rebuilt there."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    every = {"partner": 1, "parity": 1, "persistent": 0}
    settings = config(directory, every=every, parity_group=3, parity_tolerate=1)
    with deeppart.Checkpointer(settings) as ck:
        for step in (1, 2):
            pending = ck.checkpoint(state(step), step)
            for level in ("local", "partner", "parity"):
                pending.wait(level, timeout=200)
    found: dict[str, Any] = {}
    for lost in ([0], [2], ["2/*/partner", 1]):  # node 2 has the copies of what is on node 1
        comm.Barrier()
        if comm.rank == 0:
            for node in lost:
                for path in (directory / "local").glob(f"node{node}"):
                    shutil.rmtree(path)
        comm.Barrier()
        with deeppart.Checkpointer(settings) as ck:
            live = state(0)
            came = ck.restore(live)
            found[str(lost)] = (came, live["x"][-1].item(), ck.explanation[0].partition(": ")[2])
    return found


@pytest.mark.of_mpi
def test_lost_nodes_are_rebuilt_inside_the_calls(run_ranks: Any, tmp_path: Path) -> None:
    for found in run_ranks(3, lose_nodes, tmp_path, env=SETTINGS).values:
        assert [(step, value) for step, value, _ in found.values()] == [(2, 2.0)] * 3, found
        from_copies, again, by_parity = (text for _, _, text in found.values())
        assert "partner" in from_copies and "partner" in again and "rebuilt from parity" in by_parity, found


def neglect(directory: Path) -> list[str]:
    """Training that stays away from the library for longer than the timeout: nobody has waited for anybody."""
    with deeppart.Checkpointer(config(directory, timeout=8.0)) as ck:
        ck.checkpoint(state(1), 1).wait(timeout=200)
        late = ck.checkpoint(state(2), 2)
        time.sleep(10.0)
        found = [late.report.levels["persistent"].state]
        ck.checkpoint(state(3), 3).wait(timeout=200)
        found.append(late.report.levels["persistent"].state)
    return found


@pytest.mark.of_mpi
def test_training_that_does_not_look_in_commits_when_it_does(run_ranks: Any, tmp_path: Path) -> None:
    for found in run_ranks(2, neglect, tmp_path, env=SETTINGS).values:
        assert found == ["running", "done"]
    assert deeppart.load(tmp_path / "p")["step"] == 3


def desert(directory: Path) -> tuple[str, list[str]]:
    """Rank 1 makes its checkpoint and never looks in again."""
    from mpi4py import MPI

    with pytest.warns() as caught:
        ck = deeppart.Checkpointer(config(directory, timeout=8.0, every={"partner": 0}))
        ck.checkpoint(state(1), 1).wait(timeout=200)
        pending = ck.checkpoint(state(2), 2)
        if MPI.COMM_WORLD.rank == 1:
            while not (directory / "over").exists():
                time.sleep(0.01)
            warnings.warn("so that there is one", UserWarning, stacklevel=1)
            return "", []
        with pytest.raises(CheckpointError) as error:
            pending.wait(timeout=200)
        with pytest.raises(CheckpointError):
            pending.wait("local", timeout=200)
        (directory / "over").touch()
        ck.close()
        with pytest.raises(CheckpointError, match="closed"):
            ck.checkpoint(state(3), 3)
        warnings.warn("so that there is one", UserWarning, stacklevel=1)
    return str(error.value), [str(warning.message) for warning in caught]


@pytest.mark.of_mpi
def test_a_rank_that_stays_away_from_a_round_is_named(run_ranks: Any, tmp_path: Path) -> None:
    text, messages = run_ranks(2, desert, tmp_path, env=SETTINGS).values[0]
    assert "step 2" in text and "waited " in text and "s for rank 1" in text
    assert messages == ["so that there is one"], "wait has told already"
    assert deeppart.load(tmp_path / "p")["step"] == 1, "what was committed stays"


def go_on_at_once(directory: Path) -> list[str]:
    """A rank whose memory is in use by what is rebuilt comes late to the next checkpoint; the others wait there."""
    from mpi4py import MPI

    from deeppart.repair import Healer

    def late(healer: Healer, *args: Any) -> Any:
        time.sleep(1.0)  # the others wait in checkpoint() by then
        return looks(healer, *args)

    looks, Healer.damaged_files = Healer.damaged_files, late  # type: ignore[method-assign, assignment]
    comm = MPI.COMM_WORLD
    settings = config(directory, timeout=40.0, every={"partner": 0, "parity": 1, "persistent": 0}, parity_group=3)
    with deeppart.Checkpointer(settings) as ck:
        ck.checkpoint(state(1), 1).wait("parity", timeout=40)
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(next((directory / "local").glob("node0")))
    comm.Barrier()
    with deeppart.Checkpointer(settings) as ck:
        assert ck.restore(state(0)) == 1
        pending = ck.checkpoint(state(2), 2)
        pending.wait("parity", timeout=40)
        return [level.state for level in pending.report.levels.values()]


@pytest.mark.of_mpi
def test_who_waits_for_a_rank_that_rebuilds_takes_part_in_that(run_ranks: Any, tmp_path: Path) -> None:
    for states in run_ranks(3, go_on_at_once, tmp_path, env=SETTINGS).values:
        assert sorted(set(states)) == ["done", "off"], states


def one_rank_looks(directory: Path) -> int:
    """``if rank == 0: pending.wait()``, with the other ranks already at the next checkpoint, or at a restore."""
    from mpi4py import MPI

    from deeppart.comm import waiting as driver
    from deeppart.session import saves

    saves._ROUND_PATIENCE_S = driver._BULK_S = 0.0
    leads = MPI.COMM_WORLD.rank == 0
    with deeppart.Checkpointer(config(directory, timeout=40.0)) as ck:
        for step in range(1, 9):
            pending = ck.checkpoint(state(step), step)
            if leads:
                pending.wait(timeout=40)
        assert ck.restore(state(0)) == 8
        ck.checkpoint(state(9), 9)
    return 0


@pytest.mark.of_mpi
def test_one_rank_may_wait_where_others_go_on(run_ranks: Any, tmp_path: Path) -> None:
    run_ranks(3, one_rank_looks, tmp_path, env=SETTINGS)
    assert deeppart.load(tmp_path / "p")["step"] == 9


def two_at_once(directory: Path) -> int:
    """Two checkpointers of a process, waited for in another order on each rank."""
    from mpi4py import MPI

    from deeppart.comm import waiting as driver
    from deeppart.session import saves

    saves._ROUND_PATIENCE_S = driver._BULK_S = 0.0
    with (
        deeppart.Checkpointer(config(directory / "a", timeout=40.0)) as one,
        deeppart.Checkpointer(config(directory / "b", timeout=40.0)) as other,
    ):
        for step in range(1, 5):
            pending = [one.checkpoint(state(step), step), other.checkpoint(state(step), step)]
            for each in pending if MPI.COMM_WORLD.rank else reversed(pending):
                each.wait(timeout=40)
    return 0


@pytest.mark.of_mpi
def test_several_checkpointers_are_waited_for_in_any_order(run_ranks: Any, tmp_path: Path) -> None:
    run_ranks(2, two_at_once, tmp_path, env=SETTINGS)
    assert [deeppart.load(tmp_path / name / "p")["step"] for name in "ab"] == [4, 4]
