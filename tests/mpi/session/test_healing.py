"""After a restore, what the step has lost of its copies and parity is rebuilt; where it cannot be, that is said.

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
from tests.mpi.lost_nodes import PARITY, PARTNER, config, lose, state

pytestmark = pytest.mark.mpi(min_size=4)

BOTH_LEVELS = {"every": {"persistent": 1, "partner": 1}}


def save(comm: Any, directory: Path, settings: dict[str, Any], *steps: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.errors.PerRankNotice)
        with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
            for step in steps:
                pending = ck.checkpoint(state(step, comm.rank), step)
                for level in pending.levels:
                    pending.wait(level, timeout=200)


def went_on(comm: Any, directory: Path, settings: dict[str, Any]) -> tuple[list[str], list[int], int]:
    """Restore; lines about redundancy, the steps that are complete on nodes then, and files of copies and parity."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.DeeppartWarning)
        with deeppart.Checkpointer(config(directory, **settings), comm) as ck:
            assert ck.restore(state(0, comm.rank)) is not None
            deadline = time.monotonic() + 60
            while not ck._pipeline.idle and time.monotonic() < deadline:
                time.sleep(0.01)
            complete = sorted(each.step for each in ck._pipeline.call_notes.complete().values())
            lines = [line for line in ck.explanation if "redundancy" in line or "parity is not" in line]
    comm.Barrier()
    files = [*directory.glob("local/*/*/partner/step-*/*.dpp"), *directory.glob("local/*/*/parity/step-*/*.dpy")]
    return lines, complete, len(files)


@pytest.mark.timeout(110)
@pytest.mark.parametrize("settings", [PARTNER, PARITY], ids=["copies", "parity"])
def test_what_a_node_has_lost_comes_back(run_on: Any, shared_path: Path, settings: dict[str, Any]) -> None:
    run_on(4, save, shared_path, settings, 1)
    assert run_on(4, went_on, shared_path, settings) == [([], [1], 4)] * 4, "nothing is lost, nothing is said"
    run_on(4, lose, shared_path, 2)
    for lines, complete, files in run_on(4, went_on, shared_path, settings):
        assert len(lines) == 1 and lines[0].startswith("step 1: rebuilding redundancy in the background: ")
        assert complete == [1] and files == 4
    assert run_on(4, went_on, shared_path, settings) == [([], [1], 4)] * 4


def branched(comm: Any, directory: Path) -> tuple[list[str], list[int], int]:
    """The directory is copied: its steps are of another lineage, whose files on nodes do not count."""
    save(comm, directory, BOTH_LEVELS, 1)
    comm.Barrier()  # a rank that still closes writes its status below
    if comm.rank == 0:
        shutil.copytree(directory / "ckpt", directory / "branch" / "ckpt")
    comm.Barrier()
    return went_on(comm, directory / "branch", BOTH_LEVELS)


@pytest.mark.timeout(110)
def test_a_step_of_another_lineage_is_not_rebuilt_and_that_is_said(run_on: Any, shared_path: Path) -> None:
    for lines, complete, files in run_on(4, branched, shared_path):
        assert len(lines) == 1 and "was saved under another lineage" in lines[0]
        assert complete == [] and files == 0
