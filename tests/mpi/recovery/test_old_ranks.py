"""What old ranks had of their own, on another number of ranks: of tied leaves, and through a function of the caller.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.mpi.suspect_training import checkpointer
from tests.mpi.training_states import config

pytestmark = [
    pytest.mark.mpi(min_size=4),
    pytest.mark.filterwarnings("ignore::deeppart.errors.DeeppartWarning"),
]


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


def no_room(comm: Any, directory: Path) -> tuple[str, str]:
    """The function gives the owner of a tied leaf fewer elements than the tied one has."""
    if comm.size == 2:
        a = torch.full((1_000,), float(comm.rank))
        with checkpointer(comm, directory, replicated="none") as ck:
            ck.checkpoint({"a": a, "b": a[10:900]}, 1).wait(timeout=200)
        return "", ""
    a = torch.full((50,), 7.0)
    live = {"a": a, "b": a[10:40]}
    with checkpointer(comm, directory, replicated="none") as ck:
        with pytest.raises(deeppart.DeeppartError) as caught:
            ck.restore(live, per_rank=lambda path, old, rank, size: old[0][:50])
    assert bool((a == 7).all()), "nothing live is touched"
    return type(caught.value).__name__, str(caught.value)


def test_what_has_no_room_for_a_leaf_that_shares_its_memory(run_on: Any, shared_path: Path) -> None:
    run_on(2, no_room, shared_path)
    for kind, text in run_on(3, no_room, shared_path):
        assert kind == "LeafMismatchError" and "too small an array for a leaf that shares its memory" in text
