"""When ranks hang, by what they have reported."""

from __future__ import annotations

import pytest

from deeppart.agent.watch import Hang, HangWatch
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
    assert silent(watch, ranks, at_s, limit_s - 1.5) is None
    hang = silent(watch, ranks, at_s + limit_s - 1.5, 3.0)
    assert hang is not None and hang.ranks == (1,) and hang.step_s == pytest.approx(step_s)


def silent(watch: HangWatch, ranks: list[Progress], begin_s: float, seconds: float) -> Hang | None:
    """Look each second for so long; what was found last."""
    found = None
    for second in range(int(seconds) + 1):
        found = watch.look(ranks, begin_s + second)
    return found


@pytest.mark.parametrize("steps", [0, 1, 9, 10])
def test_before_ten_steps_nothing_is_a_hang(steps: int) -> None:
    watch = HangWatch(60.0)
    at_s = look_at(watch, steps, 0.1)
    assert silent(watch, [Progress(-1, at_s, steps)] * 2, at_s, 1000) is None


def test_a_machine_that_slept_is_no_hang() -> None:
    watch = HangWatch(60.0)
    at_s = look_at(watch, 30, 0.1)
    assert watch.look([Progress(-1, at_s, 30)] * 2, at_s + 10_000) is None


def test_a_hang_after_a_restart() -> None:
    """The time of a step is known then; but the first ones may take longer again."""
    watch = HangWatch(60.0)
    look_at(watch, 30, 0.1)
    watch.begin()
    assert silent(watch, [Progress()] * 2, 200.0, 1000) is None
    at_s = look_at(watch, 2, 0.1, 2000.0)
    assert silent(watch, [Progress(-1, at_s, 2)] * 2, at_s, 1000) is None
    watch.begin()
    at_s = look_at(watch, 5, 0.1, 4000.0)
    hang = silent(watch, [Progress(-1, at_s, 5)] * 2, at_s, 1000)
    assert hang is not None and hang.ranks == (0, 1)


def test_a_pause_of_any_rank_is_none() -> None:
    watch, steps = HangWatch(60.0), 20
    at_s = look_at(watch, steps, 0.1)
    assert silent(watch, [Progress(-1, at_s, steps), Progress(-1, at_s, steps, 1)], at_s, 1000) is None
    assert silent(watch, [Progress(-1, at_s, steps), Progress(-1, at_s + 1001, steps)], at_s + 1001, 50) is None


def test_it_can_be_off() -> None:
    watch = HangWatch(None)
    at_s = look_at(watch, 20, 0.1)
    assert silent(watch, [Progress(-1, at_s, 20)] * 2, at_s, 1000) is None
