"""Copies of one checkpoint on other nodes: they refer to what was copied before, however often that was.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import deeppart
from tests.mpi.incremental_states import FROZEN, at_once, config, lose, remove, restored, save, state

pytestmark = pytest.mark.mpi(min_size=4)


def nodes_are_lost(comm: Any, directory: Path) -> tuple[dict[str, int], list[Any]]:
    with deeppart.Checkpointer(config(directory), comm) as checkpointer:
        save(checkpointer, 1)
        reports = save(checkpointer, 2, 3)
    results = []
    for nodes in ((0,), (1, 3), (2,)):
        at_once(comm, lose, directory, *nodes)
        results.append(restored(comm, directory))
    return {level: report.nbytes for level, report in reports.items()}, results


@pytest.mark.timeout(110)
def test_copies_refer_to_what_was_copied(run_on: Any, shared_path: Path) -> None:
    for written, results in run_on(4, nodes_are_lost, shared_path):
        assert written.keys() == {"local", "partner"}
        assert all(nbytes < 4 * (FROZEN // 8) for nbytes in written.values())
        assert [(step, good) for step, good, _ in results] == [(3, True)] * 3
        assert "2 of 4 parts partner" in results[1][2]


def cadences(comm: Any, directory: Path) -> list[tuple[int, ...]]:
    """A copy refers to nothing that was not copied, and then the partner's node loses what it holds."""
    settings = {"every": {"persistent": 0, "local": 1, "partner": 2}, "keep": {"local": 0}}
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.errors.BackgroundFailureWarning)
        with deeppart.Checkpointer(config(directory, **settings), comm) as checkpointer:
            for step in range(1, 6):
                reports = save(checkpointer, step)
                found.append(tuple(reports[level].nbytes for level in ("local", "partner") if level in reports))
            at_once(comm, remove, directory / "local" / "node1", "*/partner/step-000000000005-*")
            checkpointer.checkpoint(state(6), 6).wait("local")
            pending = checkpointer.checkpoint(state(7), 7)
            with pytest.raises(deeppart.errors.CheckpointError, match="not on this node"):
                pending.wait("partner")
            checkpointer.checkpoint(state(8), 8).wait("local")
            reports = save(checkpointer, 9)
            found.append(tuple(report.nbytes for report in reports.values()))
            comm.Barrier()
    return found


@pytest.mark.timeout(110)
def test_steps_that_are_copied_less_often(run_on: Any, shared_path: Path) -> None:
    whole = FROZEN  # of four ranks: a quarter of the floats, of four bytes each
    for found in run_on(4, cadences, shared_path):
        sizes = [tuple(nbytes >= whole for nbytes in each) for each in found]
        # Steps 1, 3 and 5 are copied. Step 2 refers to step 1; step 3 does so too, since step 1 was copied.
        assert sizes == [(True, True), (False,), (False, False), (False,), (False, False), (True, True)]
