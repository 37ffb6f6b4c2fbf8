"""Parity is of what was written and checked, or there is none: of other bytes it would replace good parity."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import xxhash

import deeppart
from deeppart.comm import connect, finish
from deeppart.errors import DeeppartError, StorageError
from deeppart.model import Attempt, ParityIdentity
from deeppart.nodes import Arena, PartFile, encode_sets
from deeppart.nodes.exchange import parity
from deeppart.plan.redundancy import Member, ParitySet
from deeppart.storage import DurableFile
from tests.mpi.lost_nodes import PARITY, lose, restore, save, state
from tests.mpi.on_nodes import config
from tests.mpi.repair.test_scrub import flip

pytestmark = pytest.mark.mpi(min_size=4)


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
    read = parity._Encoding.read

    def changed(self: Any, row: int, block: Any, memory: Any) -> Any:
        found = read(self, row, block, memory)
        if self._place == rank:
            found[self.filled(row, block) // 2] ^= 0x10
        return found

    monkeypatch.setattr(parity._Encoding, "read", changed)


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


def unreadable(world: Any, directory: Path, unread: tuple[int, ...]) -> tuple[str, list[Path]]:
    """What is raised, and which files are left, when some members cannot read their parts."""
    comm = connect(world, 60.0)
    path = directory / f"part-{comm.rank}"
    path.write_bytes(bytes([comm.rank]) * 100_000)
    mine = PartFile(path, 100_000, "00" * 16, xxhash.xxh3_128_hexdigest(path.read_bytes()))
    if comm.rank in unread:
        mine = PartFile(path, 0, "", "", StorageError("cannot read", where=str(path)))
    which = ParitySet(tuple(Member(rank, rank) for rank in range(4)), 2)
    sets = [(which, mine)] * 2  # after what goes wrong in one, the other is encoded all the same
    attempt = Attempt("0" * 32, "1" * 32, 0, 1, 4)

    def opened(identity: ParityIdentity) -> DurableFile:
        return DurableFile(directory / f"parity-{comm.rank}")

    operation = encode_sets(comm, sets, attempt, opened, Arena(), None)
    with pytest.raises(DeeppartError) as told:
        finish(comm, operation, "a test", 60.0)
    comm.release()
    return str(told.value), [each for each in directory.iterdir() if f"parity-{comm.rank}" in each.name]


@pytest.mark.parametrize("unread", [(1,), (0, 1, 2, 3)])
def test_parts_that_cannot_be_read(run_on: Any, shared_path: Path, unread: tuple[int, ...]) -> None:
    results = run_on(4, unreadable, shared_path, unread)
    for rank, (told, left) in enumerate(results):
        assert "cannot read" in told and f"part-{rank if rank in unread else unread[0]}" in told
        assert not left
