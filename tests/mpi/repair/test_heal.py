"""A restored step gets back what it has lost; what goes wrong on one rank keeps no other one waiting."""

from __future__ import annotations

import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import deeppart
from tests.mpi.lost_nodes import PARITY, PARTNER, lose, restore, save, short, state
from tests.mpi.on_nodes import config

pytestmark = pytest.mark.mpi(min_size=4)

BOTH_LEVELS = {"every": {"persistent": 1, "partner": 1}}


def without_memory(comm: Any, directory: Path, settings: dict[str, Any], lost: int, what: str) -> list[Any]:
    """Nodes are lost, and one rank has not the memory for something; then it has again."""
    save(comm, directory, settings, (1,))
    lose(comm, directory, *range(lost))
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if comm.rank == 1:
            patch.setattr(what, short)
        began = time.monotonic()
        results = [restore(comm, directory, settings)[:2], time.monotonic() - began < 100.0]
    told = [str(each.message) for each in caught if each.category is deeppart.errors.BackgroundFailureWarning]
    return [*results, restore(comm, directory, settings)[:2], told]


@pytest.mark.timeout(110)
@pytest.mark.parametrize(
    ("settings", "lost", "what"),
    [
        (BOTH_LEVELS, 4, "deeppart.repair.heal.put_part"),  # to write its part back
        (PARTNER, 1, "deeppart.repair.mending.PartReader"),  # to read what copies are to be made of
        (PARITY, 1, "deeppart.repair.mending.PartReader"),
    ],
    ids=["writing", "copies", "parity"],
)
def test_what_goes_wrong_on_one_rank_keeps_no_other_one_waiting(
    run_on: Any, shared_path: Path, settings: dict[str, Any], lost: int, what: str
) -> None:
    results = run_on(4, without_memory, shared_path, settings, lost, what)
    assert [result[:3] for result in results] == [[(1, True), True, (1, True)]] * 4
    told = results[0][3]
    assert lost == 1 or any("rank 1 failed: MemoryError" in text for text in told), told


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
