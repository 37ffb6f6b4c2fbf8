"""What rank 0 tells of leaves that differ and of patterns that match nothing: each thing once."""

from __future__ import annotations

import warnings

from deeppart.comm import SingleComm
from deeppart.errors import DeeppartWarning, PerRankNotice, ReplicaDivergenceWarning
from deeppart.save.warnings import Warnings
from deeppart.state.compare.classify import Classified
from deeppart.state.compare.compared import Interval
from deeppart.state.compare.divergence import Divergence
from deeppart.state.tree.replication import Replication

WHAT = "checkpoint(step=9)"


def said(rank0: Warnings, found: Classified, noticed: tuple[str, ...] = ()) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rank0.differences(found, noticed, WHAT)
    return caught


def test_leaves_that_are_each_ranks_own_are_told_once() -> None:
    rank0 = Warnings()
    (told,) = said(rank0, Classified(("rng", "seen/0"), ()), ("lists",))
    assert told.category is PerRankNotice
    assert "saved per rank from now on: lists, rng, seen/0\n" in str(told.message)
    assert "nothing is to be done" in str(told.message) and "asks for per_rank=" in str(told.message)
    assert said(rank0, Classified(("rng",), ())) == []
    (told,) = said(rank0, Classified(("rng", "other"), ()))
    assert "from now on: other\n" in str(told.message)


def test_leaves_that_have_come_to_differ_name_the_pattern_that_would_allow_it() -> None:
    found = Classified((), (Divergence("replay/3/rows", ((0, 2), (1,))),))
    (told,) = said(Warnings(), found)
    text = str(told.message)
    assert told.category is ReplicaDivergenceWarning and text.startswith(WHAT)
    assert "replicated={'replay/*/rows': 'none', '*': 'auto'}" in text
    assert "replay/3/rows: rank 1 differs from ranks 0 and 2" in text
    assert "suspect" not in text, "no checkpoint was made since they were compared"


def test_earlier_steps_are_called_suspect_where_there_are_any() -> None:
    interval = Interval(3, 8, 3, 9, (4, 5, 6, 7, 8))
    (told,) = said(Warnings(), Classified((), (Divergence("w", ((0,), (1,)), interval),)))
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
