"""Copies of one checkpoint on other nodes: whole ones, also of states of which little changes.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import deeppart
from tests.mpi.incremental_states import FROZEN, at_once, config, lose, restored, save

pytestmark = pytest.mark.mpi(min_size=4)


def nodes_are_lost(comm: Any, directory: Path) -> tuple[dict[str, int], list[Any]]:
    with deeppart.Checkpointer(config(directory), comm) as checkpointer:
        reports = save(checkpointer, 1, 2, 3)
    results = []
    for nodes in ((0,), (1, 3), (2,)):
        at_once(comm, lose, directory, *nodes)
        results.append(restored(comm, directory))
    return {level: report.nbytes for level, report in reports.items()}, results


@pytest.mark.timeout(110)
def test_copies_are_whole(run_on: Any, shared_path: Path) -> None:
    for written, results in run_on(4, nodes_are_lost, shared_path):
        assert written.keys() == {"local", "partner"}
        assert all(nbytes > FROZEN for nbytes in written.values())
        assert [(step, good) for step, good, _ in results] == [(3, True)] * 3
        assert "2 of 4 parts partner" in results[1][2]
