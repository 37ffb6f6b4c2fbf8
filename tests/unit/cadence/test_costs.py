"""What a checkpoint costs training, from the times of steps around it."""

from __future__ import annotations

import pytest

from deeppart.cadence.costs import GUESSED_SLOWDOWN, CostMeter
from tests.unit.cadence.ended import checkpoint

# --- costs ------------------------------------------------------------------------------------------------------------


def test_steps_tell_what_the_background_costs() -> None:
    meter, now = CostMeter(), 0.0
    for number in range(400):
        working = number % 10 < 4
        meter.entered(now, working=working)
        meter.left(now + 0.01, working=working)
        now += 0.01 + (1.05 if working else 1.0)
        if number == 150:
            assert meter.slowdown == GUESSED_SLOWDOWN, "too few steps"
    assert meter.slowdown == pytest.approx(0.05, rel=0.01)
    assert meter.step_s == pytest.approx(1.0, rel=0.06)


def test_the_first_checkpoint_is_no_measure_for_the_others() -> None:
    meter = CostMeter()
    assert meter.waiting
    meter.made(checkpoint(("persistent",), 9.0, {"persistent": 90.0}))
    assert meter.waiting
    assert meter.take_failures() == frozenset() and not meter.waiting
    assert meter.costs(("persistent",), {})[0].busy_s == 90.0
    for _ in range(2):
        meter.made(checkpoint(("persistent",), 1.0, {"persistent": 10.0}))
    meter.take_failures()
    (cost,) = meter.costs(("persistent",), {"persistent": 0.5})
    assert cost.cost_s == pytest.approx(1.0 + GUESSED_SLOWDOWN * 10.0)
    assert (cost.busy_s, cost.failures_per_s) == (10.0, 0.5)


def test_the_block_is_paid_once_however_many_levels() -> None:
    meter = CostMeter()
    meter.made(checkpoint(("local", "persistent"), 1.0, {"local": 2.0, "persistent": 10.0}))
    meter.take_failures()
    local, persistent = meter.costs(("local", "persistent"), {})
    assert local.cost_s == pytest.approx(1.0 + GUESSED_SLOWDOWN * 2)
    assert persistent.cost_s == pytest.approx(GUESSED_SLOWDOWN * 10)
