"""What ranks of a save tell each other through DCP's exchanges."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.checkpoint import SavePlan

from deeppart.interop.dcp.names import Item
from deeppart.interop.dcp.storage_writer import MOST_STAGED, Answer, Staged, StagedSaves, answered, mark_among
from deeppart.pending import Pending


def staged(*names: str) -> Staged:
    return Staged(Pending(1, frozenset(), lambda: None), tuple(Item((name,), torch.float32, (1,)) for name in names))


def test_a_staged_state_is_taken_once_in_any_order() -> None:
    saves = StagedSaves()
    states = [staged(str(number)) for number in range(3)]
    marks = [mark_among(["other", *saves.put(each)]) or "" for each in states]
    assert len(set(marks)) == 3 and mark_among(["model.weight", 7]) is None
    assert [saves.take(marks[number]) for number in (1, 0, 2)] == [states[1], states[0], states[2]]
    assert saves.take(marks[1]) is None and saves.told(marks[1]) is None


def test_those_that_nobody_takes_are_forgotten() -> None:
    saves = StagedSaves()
    states = [staged(str(number)) for number in range(2 * MOST_STAGED)]
    marks = [next(iter(saves.put(each))) for each in states]
    assert [saves.take(mark) for mark in marks] == [None] * MOST_STAGED + states[MOST_STAGED:]


def test_the_coordinator_asks_ranks_that_have_something_else() -> None:
    plans = []
    for names in (["a", "b"], ["a", "b"], ["a", "c"]):
        saves = StagedSaves()
        mark = next(iter(saves.put(staged(*names))))
        told: Any = saves.told(mark)
        plans.append(SavePlan([], storage_data=told))
    plans.append(SavePlan([]))
    answers = [plan.storage_data for plan in answered(plans)]
    assert [isinstance(each, Answer) and each.wants for each in answers] == [True, False, True, False]


def test_digests_follow_what_is_staged() -> None:
    saves = StagedSaves()
    told = [saves.told(next(iter(saves.put(staged(name))))) for name in ("a", "a", "b")]
    digests = [each.digest for each in told if each is not None]
    assert digests[0] == digests[1] != digests[2]
