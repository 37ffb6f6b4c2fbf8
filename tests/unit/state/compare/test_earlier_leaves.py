"""What is remembered of leaves whose structure has changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deeppart.state.compare import classify as earlier_leaves
from deeppart.state.compare.classify import EarlierLeaves
from deeppart.state.compare.divergence import NEVER
from deeppart.state.compare.state_layout import StateLayout, derive
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.globs import Replication


def layout(*names: str, elements: int = 3, turn: int | None = None) -> StateLayout:
    state: dict[str, Any] = {name: torch.zeros(elements) for name in names}
    found = derive(flatten(state), Replication("auto"))
    if turn is not None:
        found.record.in_full(list(range(len(names))), turn)
    return found


def test_a_leaf_that_comes_back_is_known_by_its_path() -> None:
    known = EarlierLeaves()
    known.remember(layout("a", "b", turn=7))
    turns, retyped = known.known(layout("b", "c"), fresh=True)
    assert turns.tolist() == [7, NEVER] and retyped.tolist() == [False, False]
    turns, _ = known.known(layout("b", "c"), fresh=False)
    assert turns.tolist() == [NEVER, NEVER], "only a structure that is new somewhere is looked up"


def test_what_was_never_compared_takes_nothing_from_what_is_known() -> None:
    known = EarlierLeaves()
    known.remember(layout("a", turn=7))
    known.remember(layout("a"))
    assert known.known(layout("a"), fresh=True)[0].tolist() == [7]


def test_another_type_is_told_and_what_is_per_rank_is_not_known() -> None:
    known = EarlierLeaves()
    known.remember(layout("a", "b", turn=7))
    turns, retyped = known.known(layout("a", "b", elements=4), fresh=True)
    assert turns.tolist() == [7, 7] and retyped.tolist() == [True, True]
    here = layout("a", "b")
    here.per_rank[0] = True
    assert known.known(here, fresh=True)[0].tolist() == [NEVER, 7]
    differing = layout("a", turn=7)
    differing.per_rank[0] = True
    nothing = EarlierLeaves()
    nothing.remember(differing)
    assert nothing.known(layout("a"), fresh=True)[0].tolist() == [NEVER]


def test_when_a_structure_was_compared_its_own_record_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    known = EarlierLeaves()
    known.remember(layout("a", "b", "c", turn=7))
    known.settle(layout("a"))
    assert known.known(layout("a", "b"), fresh=True)[0].tolist() == [NEVER, 7]
    monkeypatch.setattr(earlier_leaves, "_MOST_LEAVES", 1)
    known.settle(layout("a"))
    assert known.known(layout("b", "c"), fresh=True)[0].tolist().count(7) == 1, "only so many are remembered"
