"""The time that a campaign takes to simulate, estimated before it begins: from its calls and its failures."""

from __future__ import annotations

import math

from deeppart.model import Level

from .failures import Size, rates_per_s
from .plan import Cadences, Planned

#: Longer is not waited for unasked.
LIMIT_S = 3600.0
#: Seconds of one core (AMD EPYC, 2 GHz), measured: a call of checkpoint(), each level of it, and the same in a row
#: (:mod:`.calm`); a failure, each node of the job, and each node whose storage was lost, whose parts the planner looks
#: for.
_CALL_S, _LEVEL_S, _IN_ROW_S = 30e-6, 40e-6, 6e-6
_FAILURE_S, _NODE_S, _LOST_S = 0.5e-3, 2e-6, 75e-6


def effort_s(planned: Planned, cadences: Cadences, failures: int | None = None) -> float:
    """Seconds that one run takes to simulate, to within a factor of a few."""
    levels = sum(1 / count for count in cadences.every.values() if count)
    world = planned.on(planned.nodes)
    apart_s = cadences.period_s + world.blocked_s
    calls = cadences.wall_s / apart_s
    flush_every = cadences.every.get(Level.PERSISTENT, 0)
    flush_s = world.times.complete().get(Level.PERSISTENT, 0.0)
    alone = min(1.0, (2 + flush_s / apart_s) / flush_every) if flush_every else 0.0  # of all calls, not in a row
    nodes, lost = planned.nodes, _lost_nodes(planned)
    if failures is None:
        rates = rates_per_s(planned.job.machine.failures, Size(planned.job.ranks, nodes))
        restarts_s = sum(rates[kind] * cadences.wall_s * _failure_s(nodes, lost[kind]) for kind in rates)
    else:
        restarts_s = failures * _failure_s(nodes, lost["node"])
    restarts_s += cadences.scheduling.ends_per_s() * cadences.wall_s * _failure_s(nodes, lost["system"])
    return calls * (alone * (_CALL_S + levels * _LEVEL_S) + (1 - alone) * _IN_ROW_S) + restarts_s


def _lost_nodes(planned: Planned) -> dict[str, int]:
    """Failure class -> nodes whose parts the planner looks for, with those that could give them back."""
    protection, nodes = planned.job.protection, planned.nodes
    width = 1 + max(int(protection.partner), protection.parity_group)
    kinds = planned.job.machine.failures.kinds
    groups = {name: min(nodes, kind.nodes * width) for name, kind in kinds.items()}
    return {"process": 0, "node": min(nodes, width), **groups, "system": nodes}


def _failure_s(nodes: int, lost: int) -> float:
    return _FAILURE_S + nodes * _NODE_S + lost * _LOST_S


def too_long(seconds: float) -> bool:
    """True if nobody should wait for that unasked."""
    return math.isnan(seconds) or seconds > LIMIT_S
