"""Leaves that share memory, on some ranks otherwise than on others: every name comes back as each rank held it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from tests.mpi.suspect_training import checkpointer

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.filterwarnings("ignore::deeppart.errors.DeeppartWarning"),
]

State = dict[str, Any]
Build = Callable[[int], State]


def weight(rank: int) -> torch.Tensor:
    return torch.arange(30_000.0) + 100_000 * rank


def other_slice(rank: int) -> State:
    a = weight(rank)
    return {"a": a, "b": a[10 * rank : 10 * rank + 20_000]}


def other_shape(rank: int) -> State:
    a = weight(rank)
    return {"a": a, "b": a.view(100, 300)[:, : 200 + rank]}


def tied_on_rank(tied: int) -> Build:
    def build(rank: int) -> State:
        a = weight(rank)
        return {"a": a, "b": a if rank == tied else a + 5}

    build.__name__ = f"tied on rank {tied}"
    return build


def same(found: State, held: State) -> bool:
    return found.keys() == held.keys() and all(torch.equal(found[name], held[name]) for name in held)


def all_ways_back(comm: Any, directory: Path, build: Build, replicated: Any) -> dict[str, bool]:
    """Save a state, and restore it into nothing, into separate leaves and into the same state; and load it."""
    state = build(comm.rank)
    held = {name: leaf.clone() for name, leaf in state.items()}
    with checkpointer(comm, directory, replicated=replicated) as ck:
        ck.checkpoint(state, 1).wait(timeout=200)
    found = {}
    separate, tied = {name: torch.zeros_like(leaf) for name, leaf in held.items()}, build(comm.rank)
    for leaf in tied.values():
        leaf.zero_()
    for how, live in (("nothing", {}), ("separate", separate), ("the same", tied)):
        with checkpointer(comm, directory, replicated=replicated) as ck:
            assert ck.restore(live) == 1
        found[how] = same(live, held)
    found["load"] = same(deeppart.load(directory, step=1, rank=comm.rank), held)
    return found


@pytest.mark.sweep(2, kinds=("build",))
@pytest.mark.parametrize("replicated", ["none", {"*": "none"}, "auto", "verify"], ids=str)
@pytest.mark.parametrize(
    "build", [other_slice, other_shape, tied_on_rank(0), tied_on_rank(1)], ids=lambda b: b.__name__
)
def test_ties_that_not_all_ranks_have(run_on: Any, shared_path: Path, build: Build, replicated: Any) -> None:
    for found in run_on(2, all_ways_back, shared_path, build, replicated):
        assert all(found.values()), found
