"""What rank 0 tells of leaves that differ and of patterns that match nothing: each thing once."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch

from deeppart.comm import Comm
from deeppart.errors import ReplicaDivergenceWarning
from deeppart.save.warnings import Warnings
from deeppart.state.compare import Differences, Divergence
from deeppart.state.tree.flattening import flatten
from tests.unit.sharded_states import checkpointer, on_ranks

WHAT = "checkpoint(step=9)"


def said(
    rank0: Warnings, found: Differences, noticed: tuple[str, ...] = (), state: Any = None
) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rank0.differences(found, noticed, flatten(state or {}).root, WHAT)
    return caught


def test_a_directory_is_told_once_whatever_restarts_in_it(tmp_path: Path) -> None:
    def run(comm: Comm, others: int, step: int) -> None:
        draw = torch.Generator().manual_seed(comm.rank)
        state: dict[str, Any] = {"best": float(comm.rank), "items": [comm.rank] * 9, "draw": draw}
        state |= {f"other{n}": torch.full((3,), comm.rank) for n in range(others)}
        with checkpointer(tmp_path, comm) as ck:
            ways: dict[str, Any] = {"draw": "drop", "*": lambda path, old, rank, size: old[rank % len(old)]}
            ck.restore(state, per_rank=ways, strict=False)
            state["best"] = float(comm.rank)
            ck.checkpoint(state, step)

    told = []
    for step, (ranks, others) in enumerate([(2, 0), (2, 0), (3, 0), (2, 1)], start=1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            on_ranks(ranks, partial(run, others=others, step=step))
        news = [str(each.message).partition("now on: ")[2].partition("\n")[0] for each in caught]
        told.append([each for each in news if each])
    assert told == [["best, items"], [], [], ["other0"]]


def test_leaves_that_have_come_to_differ_name_the_setting_that_would_allow_it() -> None:
    found = Differences((), (Divergence("replay/3/rows", ((0, 2), (1,))), Divergence("model/emb.weight", ((0,), (1,)))))
    (told,) = said(Warnings(), found)
    text = str(told.message)
    assert told.category is ReplicaDivergenceWarning and text.startswith(WHAT)
    assert "replicated={'replay/3/rows': 'none', 'model/emb.weight': 'none'}. Those" in text
    assert "replay/3/rows: rank 1 differs from ranks 0 and 2" in text
    assert "suspect" not in text, "no checkpoint was made since they were compared"
