"""When each leaf was last compared in full: never more than was."""

from __future__ import annotations

import numpy as np
import pytest

from deeppart.state.compare.history import NEVER, Calls, ComparedRecord, compared_earlier
from deeppart.state.compare.slices import SLICES, slice_of


def test_the_record_never_says_more_than_was_compared() -> None:
    """Against a model that keeps for every byte when it was last compared."""
    random = np.random.default_rng(3)
    record, model = ComparedRecord(3), np.full((3, SLICES), NEVER)
    orders = np.array([1, 1, 1])
    record.all_of(np.arange(3), 0)
    model[:] = 0
    for turn in range(1, 600):
        whole = [2] if random.random() < 0.2 else []
        if turn in (200, 420):
            orders[0] += 1  # in another order, the bytes compared so far are others
            model[0] = np.minimum(model[0], record.turns[0])
        rotating = np.array([leaf for leaf in ([0, 1, 2] if turn % 150 else [0, 1]) if leaf not in whole])
        record.due(np.array(whole, dtype=np.int64), rotating, orders[rotating], turn, [turn])
        model[rotating, slice_of(turn)] = turn
        model[whole] = turn
        for leaf in range(3):
            assert record.turns[leaf] <= model[leaf].min()
        if turn > 300:
            assert record.turns[1] == turn - SLICES + 1
            assert record.turns[2] > turn - 2 * SLICES


@pytest.mark.parametrize("seed", range(20))
def test_the_calls_of_a_session_are_all_remembered(seed: int) -> None:
    """Against a model that keeps every one of them: as regular as training is, or not."""
    random = np.random.default_rng(seed)
    calls, model, turn, number, regular = Calls(), dict[int, tuple[int, bool]](), 0, 0, 0
    for _ in range(2_000):
        if not regular:
            regular, stride, every = (
                int(random.integers(1, 200)),
                int(random.integers(1, 5)),
                int(random.integers(1, 9)),
            )
            turn += int(random.integers(0, 3))  # a call at which ranks made no checkpoint
            number = max(0, number + int(random.integers(-50, 50)))  # a restored step
        regular, turn, number = regular - 1, turn + 1, number + stride
        model[turn] = number, number % every == 0
        calls.note(turn, number, saved=number % every == 0)
    for after, before in random.integers(0, turn + 2, (300, 2)).tolist():
        steps = tuple(step for at, (step, saved) in model.items() if after < at < before and saved)
        found = calls.interval(after, before, 0)
        assert (() if found is None else found.steps) == steps
        assert calls.step(after) == model.get(after, (None,))[0]
        assert found is None or found.after_step == model.get(after, (steps[0],))[0]


def test_what_a_manifest_says_of_leaves_compared_earlier() -> None:
    calls = Calls()
    for turn, number in ((0, 100), (1, 110), (2, 120)):
        calls.note(turn, number, saved=True)
    turns = np.array([2, 1, 1, 0, NEVER, 1, 2, 0])
    found = compared_earlier(turns, np.arange(8) == 7, 2, calls)
    assert [(each.step, each.ranges) for each in found] == [
        (None, ((4, 1),)),
        (100, ((3, 1),)),
        (110, ((1, 2), (5, 1))),
    ]
    interval = calls.interval(0, 3, 130)
    assert interval is not None and interval.steps == (110, 120) and interval.after_step == 100
    assert calls.interval(2, 3, 130) is None
