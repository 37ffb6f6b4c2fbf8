"""Parity is of what was written and checked, or there is none: of other bytes it would take the place of good parity.

Run inside one mpirun of 4 ranks, each a node.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.nodes.exchange import parity
from deeppart.repair import scrub
from tests.mpi.lost_nodes import PARITY, config, lose, restore, save, state
from tests.mpi.repair.test_scrub import flip

pytestmark = pytest.mark.mpi(min_size=4)


BOTH = PARITY | {"every": {"persistent": 0, "partner": 1, "parity": 1}}


def only(directory: Path, pattern: str) -> Path:
    (path,) = (directory / "local").glob(pattern)
    return path


def on_rank_0(comm: Any, action: Any) -> None:
    comm.Barrier()
    if comm.rank == 0:
        action()
    comm.Barrier()


def change_before_reading(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """The file changes when it has been written and checked, and before the first byte of it is encoded."""
    introduce = parity._introduce

    def changed(comm: Any, which: Any, mine: Any) -> Any:
        if mine is not None and which.place_of(comm.rank) == rank:
            flip(Path(mine.path))
        return introduce(comm, which, mine)

    monkeypatch.setattr(parity, "_introduce", changed)


def change_before_sending(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """What is sent changes when it has been digested, as memory of a file may."""
    digested = parity._Encoding._digested

    def changed(self: Any, block: Any, length: int) -> bytes:
        digest = digested(self, block, length)
        if self._place == rank:
            block[block.size // 2] ^= 0x10
        return digest

    monkeypatch.setattr(parity._Encoding, "_digested", changed)


MOMENTS = {"before it is read": change_before_reading, "before it is sent": change_before_sending}


def saved(comm: Any, directory: Path) -> str:
    """What the level says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with deeppart.Checkpointer(config(directory, **PARITY), comm) as ck:
            pending = ck.checkpoint(state(1, comm.rank), 1)
            pending.wait("local", timeout=200)
            with pytest.raises(deeppart.errors.CheckpointError) as told:
                pending.wait("parity", timeout=200)
    return str(told.value)


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_part_that_changes_while_it_is_saved(
    run_on: Any, shared_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    with monkeypatch.context() as patched:
        MOMENTS[moment](patched, 2)
        told = run_on(4, saved, shared_path)
    assert all("a part has changed" in each and "part-00002-of-00004" in each for each in told), told
    assert list(shared_path.glob("local/*/*/parity/step-*/*")) == []


def healed(comm: Any, directory: Path) -> tuple[int | None, list[str]]:
    """What is restored when node 3 is lost, and what is told of the rebuilding."""
    lose(comm, directory, 3)
    live = state(0, comm.rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with deeppart.Checkpointer(config(directory, **PARITY), comm) as ck:
            step = ck.restore(live)
    return step, [str(each.message) for each in caught]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_part_that_changes_while_its_parity_is_rebuilt(
    run_on: Any, shared_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The shares that there are stay as they were: they give the part back."""
    run_on(4, save, shared_path, PARITY)
    before = {path: path.read_bytes() for path in shared_path.glob("local/node[0-2]/*/parity/*/*")}
    with monkeypatch.context() as patched:
        MOMENTS[moment](patched, 0)
        results = run_on(4, healed, shared_path)
    assert [step for step, _ in results] == [2] * 4
    assert any("a part has changed" in text for text in results[0][1]), results
    assert before == {path: path.read_bytes() for path in shared_path.glob("local/node[0-2]/*/parity/*/*")}
    for step, good, explanation in run_on(4, restore, shared_path, PARITY):
        assert step == 2 and good, explanation


def lost_and_repaired(comm: Any, directory: Path, ck: deeppart.Checkpointer) -> bool:
    """Part 0 is lost when a checkpoint is complete; whether it comes back."""
    pending = ck.checkpoint(state(1, comm.rank), 1)
    for level in ("local", "partner", "parity"):
        pending.wait(level, timeout=200)
    part = only(directory, "node0/*/step-*/part-00000-*")
    on_rank_0(comm, part.unlink)
    deadline = time.monotonic() + 60
    while not part.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    there = part.exists()
    comm.Barrier()
    return there


def scrubbed(comm: Any, directory: Path) -> tuple[bool, bool, int]:
    """Part 0 is lost, and so is the copy from which it is being repaired."""
    settings = {**BOTH, "scrub_bandwidth": 1e9}
    done: list[Any] = []
    repair = scrub.Scrubber._repair_from

    def between(self: Any, inventory: Any, *args: Any) -> Any:
        if comm.rank == 0 and not done:
            done.append(True)
            flip(only(directory, "node1/*/partner/step-*/part-00000-*"))
        return repair(self, inventory, *args)

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        warnings.simplefilter("ignore")
        patched.setattr(scrub, "SLICE_S", 0.05)
        patched.setattr(scrub.Scrubber, "_repair_from", between)
        with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
            there = lost_and_repaired(comm, directory, ck)
            assert ck._scrubber is not None
            return there, ck._scrubber._thread.is_alive(), len(done)


def test_scrubbing_goes_on_after_a_copy_that_changed_while_it_was_read(run_on: Any, shared_path: Path) -> None:
    results = run_on(4, scrubbed, shared_path)
    assert [(there, alive) for there, alive, _ in results] == [(True, True)] * 4 and results[0][2] == 1
    assert all(good and step == 1 for step, good, _ in run_on(4, restore, shared_path, BOTH))
