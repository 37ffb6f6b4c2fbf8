"""`local_dir` has one path on all nodes, as on clusters: a file says nothing of those with the same path elsewhere.

Ranks take up their nodes' disks by going there: below ``/proc/self/cwd`` every process finds its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.lost_nodes import restore, save
from tests.mpi.repair.test_scrub import flip, is_sound

pytestmark = pytest.mark.mpi(min_size=4)

SETTINGS = {"local_dir": "/proc/self/cwd/local", "every": {"persistent": 0}}


@contextlib.contextmanager
def at(comm: Any, directory: Path, disks: str) -> Iterator[None]:
    """Ranks are one node each, with these disks."""
    here, disk = Path.cwd(), directory / f"disk-{disks[comm.rank]}"
    disk.mkdir(exist_ok=True)
    comm.Barrier()
    os.chdir(disk)
    try:
        yield
    finally:
        os.chdir(here)


def restored(comm: Any, directory: Path, disks: str) -> tuple[int | None, bool, tuple[str, ...]]:
    """(step, whether every byte is right, explanation); redundancy has been rebuilt when this returns."""
    with at(comm, directory, disks):
        return restore(comm, directory, SETTINGS)


def on_rank_0(comm: Any, work: Callable[..., object], *args: Any) -> None:
    comm.Barrier()
    if comm.rank == 0:
        work(*args)
    comm.Barrier()


def part(directory: Path, disk: str, number: int) -> Path:
    (path,) = (directory / f"disk-{disk}" / "local").glob(f"*/step-000000000002-*/part-{number:05d}-*")
    return path


def moved(comm: Any, directory: Path) -> None:
    """Node b is lost, and the others come back in another order: parts go to their new nodes, under the same names."""
    with at(comm, directory, "abcd"):
        save(comm, directory, SETTINGS)
    on_rank_0(comm, shutil.rmtree, directory / "disk-b")
    assert restored(comm, directory, "cdea")[:2] == (2, True)


def damaged_on_one(comm: Any, directory: Path) -> list[Any]:
    moved(comm, directory)
    results: list[Any] = []
    for disk in "ca":
        on_rank_0(comm, flip, part(directory, disk, 0))
        results.append(restored(comm, directory, "cdea"))
        results.append((disk, is_sound(part(directory, disk, 0))))
    return results


@pytest.mark.timeout(110)
def test_another_nodes_file_of_the_same_path_is_read(run_on: Any, shared_path: Path) -> None:
    for results in run_on(4, damaged_on_one, shared_path):
        assert results[0][:2] == (2, True), results[0][2]
        assert any("(node of rank 0)" in line for line in results[0][2]), "which of the files it was"
        assert results[1] == ("c", True), "and it is whole again"
        assert results[2][:2] == (2, True)
