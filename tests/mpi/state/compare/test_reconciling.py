"""Where the structures of ranks differ, and whether they may.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import StructureMismatchError
from deeppart.testing.states import difference
from tests.mpi.state.apart_states import config, restore, save

pytestmark = pytest.mark.mpi(min_size=4)


def bookkeeping(rank: int) -> dict[str, Any]:
    """What rank 0 alone knows of a training, of several kinds at once."""
    return {
        "weights": torch.arange(3000.0),
        "metric": 0.5 if rank == 0 else None,
        "best": {"top1": 0.1, "epoch": 3} if rank == 0 else None,
        "returns": [1.0] * (rank + 1),
        "deep": {"name": [None if rank else "best", 1]},
    }


def test_none_against_a_value_beside_other_differences(run_on: Any, shared_path: Path) -> None:
    notices = run_on(2, save, shared_path, bookkeeping)
    assert all(path in notices[0][0] for path in ("metric", "best", "returns", "deep/name"))
    for rank, (step, found) in enumerate(run_on(2, restore, shared_path, bookkeeping)):
        assert step == 2
        assert difference(bookkeeping(rank), found, ordered=False) is None
        loaded = deeppart.load(shared_path / "ckpt", rank=rank)
        assert difference(bookkeeping(rank), loaded, ordered=False) is None


def refused(comm: Any, make: Any, directory: Path, rules: Any = "auto") -> str:
    with deeppart.Checkpointer(config(directory, replicated=rules), comm) as ck:
        try:
            ck.checkpoint(make(comm.rank), step=1)
        except StructureMismatchError as error:
            return str(error)
    return "saved"


def other_keys(rank: int) -> dict[str, Any]:
    return {"a": 1, "deep": {f"k{rank}": 1}}


def other_kinds(rank: int) -> dict[str, Any]:
    return {"a": 1, "deep": torch.ones(2) if rank else 7}


def test_other_differences_are_refused_with_advice_that_is_true(run_on: Any, new_shared_path: Any) -> None:
    for make, named in ((other_keys, "deep/k1"), (other_kinds, "deep")):
        for text in run_on(2, refused, make, new_shared_path()):
            assert named in text and '"none"' in text
        assert run_on(2, refused, make, new_shared_path(), {"deep/*": "none"}) == ["saved"] * 2
