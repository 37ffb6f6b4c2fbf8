"""Which sources a step is recovered from, and that each part is read once.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import deeppart
from tests.mpi.training_states import config, flat_bytes, restore, same, save, training_state

pytestmark = pytest.mark.mpi(min_size=4)


def test_lost_nodes_fall_back_to_copies_and_then_to_the_persistent_level(run_on: Any, shared_path: Path) -> None:
    saved = run_on(4, save, shared_path)
    for lost, explanation in (
        ("node2", "step 3: 3 of 4 parts local, 1 of 4 parts partner; saved by 4 ranks"),
        # a node and its partner; what node2 had lost has been rebuilt
        ("node[03]", "step 3: 2 of 4 parts local, 1 of 4 parts partner, 1 of 4 parts persistent; saved by 4 ranks"),
    ):
        for part in sorted((shared_path / "local").glob(f"{lost}/**/*.dpp")):
            part.unlink(missing_ok=True)  # all ranks run this line
        found = run_on(4, restore, shared_path)
        for rank in range(4):
            assert same(saved[rank][0], found[rank][1]) == []
        assert found[0][2][0] == explanation
        assert "rebuilding redundancy" in found[0][2][1]


def used_in_place(comm: Any, directory: Path) -> tuple[bool, list[str]]:
    """Restore with the local level on tmpfs: its parts are mapped, not read."""
    state = training_state(comm.rank, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", deeppart.errors.PerRankNotice)
        with deeppart.Checkpointer(config(directory, local_dir=str(directory / "local")), comm) as ck:
            ck.checkpoint(state, step=1).wait(timeout=200)
            before = flat_bytes(state)
            fresh = training_state(comm.rank + 100, 0)
            ck.restore(fresh)
            mapped = ck._staging.nbytes
            damaged = max((directory / "local").rglob("*.dpp"))
            comm.barrier()
            if comm.rank == 0:
                with damaged.open("r+b") as file:
                    file.seek(5000)
                    byte = file.read(1)
                    file.seek(5000)
                    file.write(bytes([byte[0] ^ 1]))
            comm.barrier()
            again = training_state(comm.rank + 200, 0)
            ck.restore(again)
            assert same(before, flat_bytes(again)) == []
            assert any("digest of a chunk" in line for line in ck.explanation), ck.explanation
    return mapped > 0, same(before, flat_bytes(fresh))


def test_parts_on_tmpfs_are_used_where_they_lie(run_on: Any, in_memory: Path) -> None:
    results = run_on(3, used_in_place, in_memory)
    assert all(changed == [] for _, changed in results)
