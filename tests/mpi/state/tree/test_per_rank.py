"""Leaves of each rank's own on another number of ranks.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import deeppart
from tests.mpi.training_states import PER_RANK, config, flat_bytes, same, training_state

pytestmark = pytest.mark.mpi(min_size=4)


def refusals(comm: Any, directory: Path) -> dict[str, Any]:
    """What three ranks meet when they restore what two saved."""
    rank = comm.rank
    state = training_state(rank, 0)
    before = flat_bytes(state)

    def mapping(path: str, old: Sequence[Any], new_rank: int, size: int) -> Any:
        if new_rank == 1:
            raise KeyError("the user's bug")
        return old[0]

    with deeppart.Checkpointer(config(directory), comm) as ck:
        with pytest.raises(deeppart.errors.PerRankError) as strict:
            ck.restore(state)
        with pytest.raises(deeppart.DeeppartError) as failing:
            ck.restore(state, per_rank=mapping)
        changed = same(before, flat_bytes(state))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ck.restore(state, per_rank="drop")
        dropped = flat_bytes(state)
        ck.restore(state, per_rank="rank0")
    return {
        "strict": str(strict.value),
        "failing": str(failing.value),
        "changed": changed,
        "dropped": (before, dropped),
        "told": [str(each.message) for each in caught if each.category is deeppart.errors.PerRankNotice],
        "of rank 0": flat_bytes(state),
    }


def test_per_rank_leaves_on_another_world_size(run_on: Any, two_ranks: tuple[Path, list[Any]]) -> None:
    directory, saved = two_ranks
    for rank, met in enumerate(run_on(3, refusals, directory)):
        assert "saved by 2" not in met["strict"] and all(path in met["strict"] for path in PER_RANK)
        assert "the user's bug" in met["failing"]
        assert met["changed"] == [], "nothing live is touched before an error"
        before, after = met["dropped"]
        assert set(same(saved[0][0], after)) == PER_RANK
        assert same({path: before[path] for path in PER_RANK}, {path: after[path] for path in PER_RANK}) == []
        assert len(met["told"]) == (rank == 0)
        assert all(path in text for text in met["told"] for path in PER_RANK)
        assert same(saved[0][0], met["of rank 0"]) == []
