"""What rank 0 tells of leaves that differ and of patterns that match nothing: each thing once."""

from __future__ import annotations

import random
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deeppart.comm import Comm, SingleComm
from deeppart.errors import DeeppartWarning, PerRankNotice, ReplicaDivergenceWarning
from deeppart.interop.training_state import rng_state
from deeppart.save.warnings import Warnings
from deeppart.state.compare import Differences, Divergence, Interval
from deeppart.state.paths.globs import Replication
from deeppart.state.paths.keys import readable
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


def test_leaves_that_are_each_ranks_own_are_told_once() -> None:
    rank0 = Warnings()
    (told,) = said(rank0, Differences(("rng", "seen/0"), ()), ("lists",))
    assert told.category is PerRankNotice
    assert "saved per rank from now on: lists, rng, seen/0\n" in str(told.message)
    assert "nothing is to be done" in str(told.message) and "asks for per_rank=" in str(told.message)
    assert "replicated={'lists': 'none', 'rng': 'none', 'seen/0': 'none'}" in str(told.message)
    assert said(rank0, Differences(("rng",), ())) == []
    (told,) = said(rank0, Differences(("rng", "other"), ()))
    assert "from now on: other\n" in str(told.message)


def test_what_was_told_when_a_restored_step_was_saved_is_not_told_again() -> None:
    rank0 = Warnings()
    rank0.told(["rng", *(f"seen/{n}" for n in range(5))])
    assert said(rank0, Differences(("rng", "seen/4", "seen/7"), ()), ("rng",)) == []
    (told,) = said(rank0, Differences(("rng", "other"), ()))
    assert "from now on: other\n" in str(told.message)


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


def test_random_generators_are_no_news_whatever_they_are_called() -> None:
    """A name says nothing: what is called so may be a parameter."""
    state = {
        "a": torch.Generator(),
        "b": [np.random.default_rng(0), random.Random(0)],
        "c": {"deep": rng_state()},
        "rng": torch.ones(2),
        "d": {"python": 1, "numpy": 2, "torch": torch.ones(3)},
    }
    flat = flatten(state)
    names = tuple(readable(leaf.path) for leaves in (flat.arrays, flat.values) for leaf in leaves)
    (told,) = said(Warnings(), Differences(names, ()), ("b/1", "c/deep/cuda"), state)
    assert "from now on: d/torch, rng, d/numpy, d/python\n" in str(told.message), told.message


def test_leaves_that_have_come_to_differ_name_the_setting_that_would_allow_it() -> None:
    found = Differences((), (Divergence("replay/3/rows", ((0, 2), (1,))), Divergence("model/emb.weight", ((0,), (1,)))))
    (told,) = said(Warnings(), found)
    text = str(told.message)
    assert told.category is ReplicaDivergenceWarning and text.startswith(WHAT)
    assert "replicated={'replay/3/rows': 'none', 'model/emb.weight': 'none'}. Those" in text
    assert "replay/3/rows: rank 1 differs from ranks 0 and 2" in text
    assert "suspect" not in text, "no checkpoint was made since they were compared"


def test_earlier_steps_are_called_suspect_where_there_are_any() -> None:
    interval = Interval(3, 8, 3, 9, (4, 5, 6, 7, 8))
    (told,) = said(Warnings(), Differences((), (Divergence("w", ((0,), (1,)), interval),)))
    assert "Earlier steps are suspect" in str(told.message)


def test_patterns_that_match_nothing_are_told_once() -> None:
    rules, rank0 = Replication({"replay/*": "none", "w": "all", "*": "auto"}), Warnings()
    rules.mode(("w",))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            rank0.patterns(SingleComm(), "replicated", rules.patterns, rules.used, WHAT, 20.0)
    (told,) = caught
    assert told.category is DeeppartWarning and "'replay/*'" in str(told.message)
    assert "'w'" not in str(told.message)
