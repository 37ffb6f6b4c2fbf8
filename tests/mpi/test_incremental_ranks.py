"""Parts that refer to those of earlier steps, on several nodes: retired, and restored on these and on other ranks.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import deeppart
from tests.mpi.incremental_states import at_once, config, lose, restored, save, state

pytestmark = pytest.mark.mpi(min_size=4)


def with_parity(comm: Any, directory: Path) -> tuple[list[Any], Any]:
    settings = {"every": {"persistent": 0, "partner": 0, "parity": 1}, "parity_group": 4, "keep": {"local": 0}}
    with deeppart.Checkpointer(config(directory, **settings), comm) as checkpointer:
        reports = [save(checkpointer, step)["local"] for step in range(1, 4)]
    at_once(comm, lose, directory, 2)
    return [(report.nbytes, report.referenced_bytes) for report in reports], restored(comm, directory, **settings)


@pytest.mark.timeout(110)
def test_parts_on_nodes_are_whole(run_on: Any, shared_path: Path) -> None:
    for reports, (step, good, explanation) in run_on(4, with_parity, shared_path):
        assert [referenced for _, referenced in reports] == [0, 0, 0]
        assert (step, good) == (3, True) and "1 of 4 parts rebuilt from parity" in explanation


def other_ranks(comm: Any, directory: Path) -> list[Any]:
    """From the persistent level, where the step refers to the one before."""
    settings: dict[str, Any] = {"every": {}}
    with deeppart.Checkpointer(config(directory, **settings), comm) as checkpointer:
        report = save(checkpointer, 1, 2)["persistent"]
    at_once(comm, shutil.rmtree, directory / "local")
    results = [bool(report.referenced_bytes), restored(comm, directory, **settings)]
    fewer = comm.Split(int(comm.rank >= 3), comm.rank)
    if comm.rank < 3:
        results.append(restored(fewer, directory, **settings))
    fewer.Free()
    return results


@pytest.mark.timeout(110)
def test_from_the_persistent_level(run_on: Any, shared_path: Path) -> None:
    for rank, (refers, *results) in enumerate(run_on(4, other_ranks, shared_path)):
        assert refers and [(step, good) for step, good, _ in results] == [(2, True)] * (2 if rank < 3 else 1)
        for _, _, explanation in results:
            assert "4 of 4 parts persistent" in explanation
            assert "the redundancy of 4 of its parts is not rebuilt" in explanation


def retired(comm: Any, directory: Path) -> tuple[Any, ...]:
    """Step 1 goes, but for the parts to which step 3 refers; these go once step 5 is all new."""
    settings: dict[str, Any] = {"every": {"local": 0}, "keep": {"persistent": 1}}
    with deeppart.Checkpointer(config(directory, **settings), comm) as checkpointer:
        save(checkpointer, 1, 2, 3)
    comm.Barrier()
    left = sorted(path.parent.name[5:17].lstrip("0") for path in (directory / "ckpt").glob("step-*/part-*"))
    manifests = len(list((directory / "ckpt").glob("step-*/manifest")))
    first = restored(comm, directory, **settings)
    with deeppart.Checkpointer(config(directory, **settings), comm) as checkpointer:
        checkpointer.restore(state(0))
        save(checkpointer, 5)
    comm.Barrier()
    return left, manifests, first[:2], len(list((directory / "ckpt").glob("step-*")))


@pytest.mark.timeout(110)
def test_parts_go_with_the_last_step_that_refers_to_them(run_on: Any, shared_path: Path) -> None:
    for found in run_on(4, retired, shared_path):
        assert found == (["1"] * 4 + ["3"] * 4, 1, (3, True), 1)
