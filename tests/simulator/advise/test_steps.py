"""Cadences in whole steps: near by, never closer than the background allows."""

from __future__ import annotations

import pytest
from deeppart_simulator.advise.choose import in_steps, steps_between
from deeppart_simulator.campaign.costs import training_s

from deeppart.plan.interval import LevelCost, best

COSTS = (
    LevelCost("local", 0.5, 1.0, 1.0, 60.0, 1 / 3e4),
    LevelCost("persistent", 2.0, 30.0, 40.0, 300.0, 1 / 1e6),
)


@pytest.mark.parametrize("step_s", [0.001, 0.37, 1.0, 30.0, 1000.0, 1e5])
def test_training_between_calls_is_whole_steps(step_s: float) -> None:
    free = best(COSTS, step_s)
    found = in_steps(COSTS, free, step_s)
    steps = training_s(COSTS, found) / step_s
    assert steps == pytest.approx(round(steps), rel=1e-9) and round(steps) == steps_between(COSTS, found, step_s) >= 1
    assert found.every == free.every and abs(found.period_s - free.period_s) <= step_s * (1 + 1e-9)
    assert free.waste.total <= found.waste.total * (1 + 1e-3)
    busy = sum(cost.busy_s / found.every[cost.name] for cost in COSTS)
    assert found.period_s >= busy * (1 - 1e-9)


def test_without_a_step_it_stays() -> None:
    free = best(COSTS)
    assert in_steps(COSTS, free, 0.0) is free
