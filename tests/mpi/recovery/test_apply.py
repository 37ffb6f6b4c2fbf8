"""From a recovered step to the live state, on all ranks.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.mpi.training_states import config

pytestmark = pytest.mark.mpi(min_size=4)


def own_tables(rank: int) -> dict[str, Any]:
    return {
        "table": {f"k{row}": 1000 * rank + row for row in range(300)},
        "rows": [{"id": row, "rank": rank} for row in range(300)],
        "square": torch.arange(9.0).reshape(3, 3) + 100 * rank,
        "numbers": list(range(rank, rank + 5)),
    }


def live_values(comm: Any, directory: Path) -> tuple[Any, Any]:
    """The function gives a new rank what it has itself: as it is, and in another order."""
    live = own_tables(7)
    turned = {**live, "rows": live["rows"][::-1], "square": live["square"].t()}

    def pick(path: str, old: Any, rank: int, ranks: int) -> Any:
        name, _, item = path.partition("/")
        mine = turned[name]
        return old[rank] if rank < len(old) else mine[int(item)] if item else mine

    expected = own_tables(comm.rank if comm.rank < 2 else 7)
    if comm.rank == 2:
        expected |= {"rows": expected["rows"][::-1], "square": expected["square"].t()}
    with deeppart.Checkpointer(config(directory), comm) as ck:
        ck.restore(live, per_rank=pick)
    return live, expected


def test_a_function_may_give_live_values(run_on: Any, shared_path: Path) -> None:
    """They are filled from themselves then."""
    with_tables = config(shared_path, replicated="none")

    def save(comm: Any) -> None:
        with deeppart.Checkpointer(with_tables, comm) as ck:
            ck.checkpoint(own_tables(comm.rank), 1).wait()

    run_on(2, save)
    for live, expected in run_on(3, live_values, shared_path):
        assert torch.equal(live.pop("square"), expected.pop("square"))
        assert live == expected
