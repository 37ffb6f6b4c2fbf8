"""Where the structures of ranks differ, and whether they may.

Run inside one mpirun of 4 ranks (``make test-mpi``); ``run_on(n, ...)`` makes a job of the first n.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

import deeppart
from deeppart.errors import StructureMismatchError
from deeppart.offline.find import find_step
from deeppart.testing.states import difference
from tests.mpi.state.apart_states import blank_tensors, config, restore, save

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


def recent(rank: int, step: int) -> dict[str, Any]:
    """Caches: the order of their entries is that in which they were used. All ranks' is the same at steps 1 and 4."""
    names = [f"k{place * (1 + rank * ((step - 1) % 3)) % 7}" for place in range(7)]
    rows = OrderedDict((name, torch.full((3,), float(name[1]))) for name in names)
    counts = OrderedDict((name, int(name[1]) + step) for name in names)
    return {"w": torch.ones(9), "counts": counts, "rows": rows, "plain": dict(counts), "trusted": OrderedDict(counts)}


def in_other_orders(comm: Any, directory: Path) -> Any:
    settings = config(directory, replicated={"trusted": "all", "*": "auto"}, keep={"persistent": 9})
    with deeppart.Checkpointer(settings, comm) as ck:
        found = []
        for step in range(1, 6):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                ck.checkpoint(recent(comm.rank, step), step=step).wait(timeout=200)
            live = blank_tensors(recent(0, 1))
            assert ck.restore(live, step=step) == step
            found.append(([str(each.message) for each in caught], live))
    return found


def test_the_order_of_ordered_dicts(run_on: Any, shared_path: Path) -> None:
    """Each rank gets back its own, from the checkpoint on at which it differs first."""
    of_0, of_1 = run_on(2, in_other_orders, shared_path)
    for rank, found in enumerate((of_0, of_1)):
        for step, (_, live) in enumerate(found, 1):
            saved = recent(rank, step)
            assert difference(saved, live, ordered=False) is None
            for name in ("counts", "rows"):
                assert list(live[name]) == list(saved[name]), (rank, step, name)
            assert list(live["trusted"]) == list(recent(0, step)["trusted"])
            rank_local = find_step(shared_path / "ckpt", step, None).manifest.structure["apart"]
            assert rank_local == (step > 1)
    notices = [text for texts, _ in of_0 for text in texts]
    assert len(notices) == 1 and "per rank from now on: counts, rows" in notices[0]
    assert not any(texts for texts, _ in of_1)
