"""Leaves that share memory, on some ranks otherwise than on others: every name comes back as each rank held it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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


def another_owner(rank: int) -> State:
    """Two names of one tensor everywhere; on rank 0 there is a third one, before them."""
    a = weight(rank)
    return {"first": a if rank == 0 else a.clone(), "a": a, "b": a}


def another_step(rank: int) -> State:
    """One tensor everywhere, whose dimension of length 1 has another step on each rank."""
    a = weight(rank)
    return {"a": a, "b": torch.as_strided(a, (1, 30_000), (1 + rank, 1))}


def in_lists_of_other_lengths(rank: int) -> State:
    a = weight(rank)
    return {"b": a, "lists": [a, *(torch.zeros(3) for _ in range(rank))]}


def behind_an_array(rank: int) -> State:
    """One tensor with two names, of whose memory there is an array, too, which comes before both."""
    n = weight(rank).numpy()
    t = torch.from_numpy(n)
    return {"n": n, "t1": t, "t2": t}


def in_two(rank: int) -> State:
    """One leaf that lies in two others, which share only a part of their memory."""
    a = weight(rank)
    return {"a": a[:20_000], "b": a[10_000:], "c": a[12_000:15_000]}


def chained(rank: int) -> State:
    """One rank ties the first two, another one the last two."""
    a = weight(rank)
    return {"a": a if rank == 0 else a + 5, "b": a, "c": a if rank == 1 else a + 5}


def leaves(state: Any) -> list[torch.Tensor]:
    if isinstance(state, np.ndarray):
        return [torch.from_numpy(state)]
    if isinstance(state, torch.Tensor):
        return [state.detach()]
    children = state.values() if isinstance(state, dict) else state
    return [leaf for child in children for leaf in leaves(child)]


def same(found: Any, held: list[torch.Tensor]) -> bool:
    return all(torch.equal(*each) for each in zip(leaves(found), held, strict=True))


def all_ways_back(comm: Any, directory: Path, build: Build, replicated: Any) -> dict[str, bool]:
    """Save a state, and restore it into nothing, into separate leaves and into the same state; and load it."""
    state = build(comm.rank)
    held = [leaf.clone() for leaf in leaves(state)]
    with checkpointer(comm, directory, replicated=replicated) as ck:
        ck.checkpoint(state, 1).wait(timeout=200)
    found = {}
    blank = {name: [torch.zeros_like(leaf) for leaf in leaves(part)] for name, part in state.items()}
    separate: dict[str, Any] = {}
    separate |= {name: made if isinstance(state[name], list) else made[0] for name, made in blank.items()}
    separate |= {name: separate[name].numpy() for name, part in state.items() if isinstance(part, np.ndarray)}
    for how, live in (("nothing", {}), ("separate", separate), ("the same", build(comm.rank))):
        if how == "the same":
            for leaf in leaves(live):
                leaf.zero_()
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


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("build", "replicated"),
    [
        (another_owner, {"a": "none", "*": "all"}),
        (another_owner, {"a": "verify", "*": "all"}),
        (another_step, {"a": "none", "*": "all"}),
        (another_step, {"a": "verify", "b": "all"}),
        (in_lists_of_other_lengths, {"lists/*": "none", "b": "all"}),
        (tied_on_rank(0), {"a": "none", "b": "none"}),
        (behind_an_array, {"t1": "none", "n": "none", "t2": "all"}),
        (behind_an_array, {"t1": "verify", "*": "all"}),
        (behind_an_array, {"n": "none", "*": "all"}),
        (in_two, {"a": "none", "*": "all"}),
        (in_two, {"b": "verify", "*": "all"}),
        (chained, {"a": "none", "*": "all"}),
    ],
    ids=str,
)
def test_each_name_gets_its_ranks_bytes_where_one_of_them_asks_for_it(
    run_on: Any, shared_path: Path, build: Build, replicated: dict[str, str]
) -> None:
    for found in run_on(2, all_ways_back, shared_path, build, replicated):
        assert all(found.values()), found
