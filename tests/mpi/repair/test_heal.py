"""A restored step gets back what it has lost; what goes wrong on one rank keeps no other one waiting.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import deeppart
import deeppart.repair.mending
from tests.mpi.lost_nodes import PARITY, PARTNER, lose, restore, save, short, state
from tests.mpi.on_nodes import config

pytestmark = pytest.mark.mpi(min_size=4)

BOTH_LEVELS = {"every": {"persistent": 1, "partner": 1}}


def without_memory(comm: Any, directory: Path) -> list[Any]:
    """All nodes are lost, and one rank has not the memory to write its part back."""
    settings = BOTH_LEVELS
    save(comm, directory, settings, (1,))
    lose(comm, directory, 0, 1, 2, 3)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if comm.rank == 1:
            patch.setattr("deeppart.repair.heal.put_part", short)
        began = time.monotonic()
        results = [restore(comm, directory, settings)[:2], time.monotonic() - began < 100.0]
    told = [str(each.message) for each in caught if each.category is deeppart.errors.BackgroundFailureWarning]
    return [*results, told, restore(comm, directory, settings)[:2]]


@pytest.mark.timeout(110)
def test_what_goes_wrong_on_one_rank_keeps_no_other_one_waiting(run_on: Any, shared_path: Path) -> None:
    results = run_on(4, without_memory, shared_path)
    assert {(first, fast, last) for first, fast, _, last in results} == {((1, True), True, (1, True))}
    assert any("rank 1 failed: MemoryError" in text for text in results[0][2]), results[0][2]


def without_memory_to_read(comm: Any, directory: Path, settings: dict[str, Any]) -> list[Any]:
    """A node is lost, and one rank has not the memory to read what copies, or parity, are to be made of."""
    save(comm, directory, settings, (1,))
    lose(comm, directory, 0)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.errors.BackgroundFailureWarning)
        if comm.rank == 1:
            patch.setattr(deeppart.repair.mending, "PartReader", short)
        began = time.monotonic()
        results = [restore(comm, directory, settings)[:2], time.monotonic() - began < 100.0]
    return [*results, restore(comm, directory, settings)[:2]]


@pytest.mark.timeout(110)
@pytest.mark.parametrize("settings", [PARTNER, PARITY], ids=["copies", "parity"])
def test_what_cannot_be_read_on_one_rank_keeps_no_other_one_waiting(
    run_on: Any, shared_path: Path, settings: dict[str, Any]
) -> None:
    assert run_on(4, without_memory_to_read, shared_path, settings) == [[(1, True), True, (1, True)]] * 4


def with_nodes_exchanged(comm: Any, directory: Path) -> list[Any]:
    """Two nodes come back with each other's storage: what each part's partner is has changed."""
    save(comm, directory, PARTNER, (1,))
    if comm.rank == 0:
        one, other = directory / "local" / "node0", directory / "local" / "node1"
        one.rename(directory / "moved")
        other.rename(one)
        (directory / "moved").rename(other)
    comm.Barrier()
    results = [restore(comm, directory, PARTNER)]
    for nodes in ((1, 3), (0, 2), (1, 3)):
        lose(comm, directory, *nodes)
        results.append(restore(comm, directory, PARTNER))
    return results


@pytest.mark.timeout(110)
def test_copies_are_on_the_next_node_again_after_nodes_were_exchanged(run_on: Any, shared_path: Path) -> None:
    for results in run_on(4, with_nodes_exchanged, shared_path):
        assert [(step, good) for step, good, _ in results] == [(1, True)] * 4, results


def branched(comm: Any, directory: Path) -> tuple[list[str], list[Path]]:
    """The directory is copied: its steps are of another lineage, whose files on nodes do not count."""
    save(comm, directory, BOTH_LEVELS, (1,))
    if comm.rank == 0:
        shutil.copytree(directory / "ckpt", directory / "branch" / "ckpt")
    comm.Barrier()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        with deeppart.Checkpointer(config(directory / "branch", **BOTH_LEVELS), comm) as ck:
            assert ck.restore(state(0, comm.rank)) == 1
            lines = [line for line in ck.explanation if "redundancy" in line]
    comm.Barrier()
    return lines, list(directory.glob("branch/local/*/*/partner/step-*/*.dpp"))


@pytest.mark.timeout(110)
def test_a_step_of_another_lineage_is_not_rebuilt_and_that_is_said(run_on: Any, shared_path: Path) -> None:
    for lines, copies in run_on(4, branched, shared_path):
        assert len(lines) == 1 and "was saved under another lineage" in lines[0]
        assert copies == []
