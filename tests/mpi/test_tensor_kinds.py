"""Sparse, quantized and jagged tensors and subclasses on several ranks: alike, unlike, and on another world size."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import deeppart
from tests.tensor_kinds import bits, by_channels, coo, csr, jagged, quantized, two

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning"),
]


def state(rank: int, seed: int = 1) -> dict[str, Any]:
    return {
        "same": [coo(seed), csr(seed), quantized(seed), by_channels(seed), jagged(seed), two(seed)],
        "other numbers": [coo(seed, 3 + rank), csr(seed, 4 + rank), jagged(seed + rank)],
        "other elements": [coo(seed + rank), quantized(seed + rank), two(seed + rank)],
        "some": coo(seed) if rank else None,
        "kinds": csr(seed) if rank else coo(seed),
    }


def config(directory: Path, **settings: Any) -> deeppart.Config:
    replicated = {"kinds": "none", "*": "auto"}
    return deeppart.Config(persistent_dir=str(directory), timeout=30.0, replicated=replicated, **settings)


def save(comm: Any, directory: Path) -> Any:
    with deeppart.Checkpointer(config(directory), comm=comm) as ck:
        for step in (1, 2):
            ck.checkpoint(state(comm.rank, step), step).wait(timeout=100)
    return None


def restore(comm: Any, directory: Path, **settings: Any) -> Any:
    live = state(comm.rank, 5)
    with deeppart.Checkpointer(config(directory, **settings), comm=comm) as ck:
        assert ck.restore(live) == 2
    return bits(live)


def test_every_rank_gets_its_own_back(run_on: Any, shared_path: Path) -> None:
    run_on(2, save, shared_path)
    for rank, found in enumerate(run_on(2, restore, shared_path)):
        assert found == bits(state(rank, 2))
    for rank, mmap in itertools.product((0, 1), (False, True)):
        loaded, expected = bits(deeppart.load(shared_path, rank=rank, mmap=mmap)), bits(state(rank, 2))
        assert all(loaded[key] == expected[key] for key in ("some", "kinds", "other numbers"))
