"""A cadence in whole training steps: between two of them no script can call."""

from __future__ import annotations

import math
from collections.abc import Sequence

from deeppart.plan.interval import Cadence, LevelCost

from ..campaign.costs import cadence_of, training_s

#: Share of a step that is rounding.
_ROUNDING = 1e-9


def in_steps(costs: Sequence[LevelCost], cadence: Cadence, step_s: float) -> Cadence:
    """The cadence near by whose calls are whole steps of training apart, the better of the two."""
    if not step_s > 0:
        return cadence
    every = [cadence.every[cost.name] for cost in costs]
    cost_s = cadence.period_s - training_s(costs, cadence)
    busy_s = sum(cost.busy_s / n for cost, n in zip(costs, every, strict=True))
    fewest = max(1, math.ceil((busy_s - cost_s) / step_s - _ROUNDING))
    steps = (cadence.period_s - cost_s) / step_s
    tried = {max(fewest, math.floor(steps + _ROUNDING)), max(fewest, math.ceil(steps - _ROUNDING))}
    found = [cadence_of(costs, count * step_s + cost_s, cadence.every) for count in sorted(tried)]
    return min(found, key=lambda each: each.waste.total)


def steps_between(costs: Sequence[LevelCost], cadence: Cadence, step_s: float) -> int:
    """Training steps from one call to the next."""
    return max(1, round(training_s(costs, cadence) / step_s))
