"""What a choice takes in a month: node-hours, money and energy, by where the time goes."""

from __future__ import annotations

from deeppart.plan.completion import cost_per_call_s

from ..budget.bill import MONTH_DAYS, USEFUL, Bill, bill
from ..machine.kinds import DAY_S
from .choose import Choice

_BLOCKED, _SLOWED, _REDONE, _BACK = "blocked by checkpoints", "slowed by the background", "training lost", "coming back"


def bill_of(choice: Choice) -> Bill:
    """The bill of 30 days, as the model of the advice expects them."""
    waste, every = choice.waste, choice.cadence.every
    per_call_s = cost_per_call_s(choice.costs, [every[cost.name] for cost in choice.costs])
    saving = choice.cadence.waste.cost * (1 - choice.leaving)  # the rest are calls that save nothing
    slowed = saving * (1 - min(1.0, choice.blocked_s / per_call_s)) if per_call_s else saving
    shares = {
        USEFUL: 1 - waste.total,
        _BLOCKED: waste.cost - slowed,
        _SLOWED: slowed,
        _REDONE: waste.rework,
        _BACK: waste.restart,
    }
    return bill(choice.job.machine, choice.job.nodes, MONTH_DAYS * DAY_S, shares, busy=(_SLOWED, _REDONE))
