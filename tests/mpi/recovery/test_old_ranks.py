"""What old ranks had of their own, on another number of ranks: of tied leaves, and through a function of the caller.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.mpi.suspect_training import checkpointer

pytestmark = [
    pytest.mark.mpi(min_size=4),
    pytest.mark.filterwarnings("ignore::deeppart.errors.DeeppartWarning"),
]


def on_one_rank(comm: Any, directory: Path, replicated: Any, per_rank: Any) -> list[float]:
    """Tied leaves that are each rank's own, restored on one rank."""
    a = torch.full((1_000,), float(comm.rank))
    with checkpointer(comm, directory, replicated=replicated) as ck:
        ck.checkpoint({"a": a, "b": a, "c": a[10:20]}, 1).wait(timeout=200)
    alone = comm.Split(comm.rank, 0)
    live: dict[str, torch.Tensor] = {}
    if comm.rank == 0:
        with checkpointer(alone, directory, replicated=replicated) as ck:
            ck.restore(live, per_rank=per_rank)
    comm.Barrier()
    return [float(leaf.mean()) for leaf in live.values()]


@pytest.mark.parametrize("replicated", ["auto", "none", {"a": "none", "*": "auto"}], ids=str)
def test_tied_leaves_of_each_rank_on_another_number_of_ranks(run_on: Any, shared_path: Path, replicated: Any) -> None:
    assert run_on(2, on_one_rank, shared_path / "rank0", replicated, "rank0")[0] == [0.0] * 3
    assert run_on(2, on_one_rank, shared_path / "last", replicated, last_of_them)[0] == [1.0] * 3


def last_of_them(path: str, old: list[Any], rank: int, ranks: int) -> Any:
    return old[-1]
