"""Parity is of what was written and checked, or there is none: of other bytes it would replace good parity."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import deeppart
from deeppart.nodes.exchange import parity
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
