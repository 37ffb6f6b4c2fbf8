"""When ranks hang, by what they have reported."""

from __future__ import annotations

import pytest

from deeppart.agent.watch import HangWatch
from deeppart.progress import Progress


def look_at(watch: HangWatch, steps: int, step_s: float, begin_s: float = 100.0) -> float:
    """Two ranks that make steps; returns when the last one was."""
    at_s = begin_s
    for trained in range(1, steps + 1):
        at_s = begin_s + trained * step_s
        ranks = [Progress(-1, at_s, trained), Progress(-1, at_s - 0.01, trained)]
        assert watch.look(ranks, at_s + 0.01) is None
    return at_s


@pytest.mark.parametrize(("step_s", "limit_s"), [(0.1, 60.0), (20.0, 200.0)])
def test_silence_is_a_hang_after_ten_usual_steps_or_the_least(step_s: float, limit_s: float) -> None:
    watch = HangWatch(60.0)
    at_s = look_at(watch, 30, step_s)
    ranks = [Progress(-1, at_s, 30), Progress(-1, at_s - 0.01, 29)]
    assert watch.look(ranks, at_s + limit_s - 0.1) is None
    hang = watch.look(ranks, at_s + limit_s + 0.1)
    assert hang is not None and hang.rank == 1 and hang.step_s == pytest.approx(step_s)


@pytest.mark.parametrize("steps", [0, 1, 9, 10])
def test_before_ten_steps_nothing_is_a_hang(steps: int) -> None:
    watch = HangWatch(60.0)
    at_s = look_at(watch, steps, 0.1)
    assert watch.look([Progress(-1, at_s, steps)] * 2, at_s + 10_000) is None


def test_a_pause_of_any_rank_is_none() -> None:
    watch, steps = HangWatch(60.0), 20
    at_s = look_at(watch, steps, 0.1)
    assert watch.look([Progress(-1, at_s, steps), Progress(-1, at_s, steps, 1)], at_s + 10_000) is None
    assert watch.look([Progress(-1, at_s, steps), Progress(-1, at_s + 10_001, steps)], at_s + 10_002) is None


def test_it_can_be_off() -> None:
    watch = HangWatch(None)
    at_s = look_at(watch, 20, 0.1)
    assert watch.look([Progress(-1, at_s, 20)] * 2, at_s + 10_000) is None
