"""Compares the ways to restart a job after failures, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from deeppart.plan.interval import Cadence, LevelCost, Waste, late_s

from ..campaign.costs import Survival, cadence_of, level_costs, restored_s, survival
from ..campaign.failures import pieces_s
from ..campaign.plan import Planned
from ..machine.record import PIECES, WAYS
from .choose import Choice

#: Costs of a failure besides the pieces of a machine's [restart]; and the cost of checkpoints without failures.
RESTORE, REPLAY, WRITING = "restore", "replay", "writing"
#: All parts of the lost time, in the order of their occurrence.
PARTS = (*PIECES, RESTORE, REPLAY, WRITING)
#: Those until training continues after a failure.
PIECES_OF_ONE = (*PIECES, RESTORE)


@dataclass(frozen=True, slots=True)
class Back:
    """The restart after one class of failures."""

    failures_per_s: float
    pieces: Mapping[str, float]  # piece -> seconds, including the restore
    replay_s: float  # mean work that has to be repeated, to first order

    @property
    def total_s(self) -> float:
        """Seconds from the failure until training continues."""
        return sum(self.pieces.values())


@dataclass(frozen=True, slots=True)
class Comparison:
    """The results of one way to restart."""

    way: str
    after: Mapping[str, Back]  # failure class -> restart after it
    waste: Waste  # fractions of the time, as in the advice
    shares: Mapping[str, float]  # part -> fraction of the time; the sum is the waste


def compare(choice: Choice) -> list[Comparison]:
    """Compare all ways to restart, with the levels and the cadence of one choice."""
    planned = Planned(choice.job)
    restart = choice.job.machine.restart
    return [_compared(planned.restarting(replace(restart, mode=way)), choice.cadence) for way in WAYS]


def _compared(planned: Planned, cadence: Cadence) -> Comparison:
    restart, found = planned.job.machine.restart, survival(planned)
    costs = level_costs(planned, found)
    restores = {cost.name: restored_s(planned, cost.name) for cost in costs}
    after = {
        kind: _after(planned, costs, found, kind, cadence, restores)
        for kind in found.needs
        if found.rates_per_s[kind] > 0
    }
    expected = cadence_of(costs, cadence.period_s, cadence.every).waste
    return Comparison(restart.mode, after, expected, _shares(expected, after))


def _after(
    planned: Planned,
    costs: Sequence[LevelCost],
    found: Survival,
    kind: str,
    cadence: Cadence,
    restores: Mapping[str, float],
) -> Back:
    """The restart after a failure of a class, as the mean over the levels that it needs."""
    needed = {cost.name: found.shares[kind].get(cost.name, 0.0) for cost in costs}
    pieces = pieces_s(planned.job.machine.restart, planned.job.ranks, {kind})
    pieces[RESTORE] = sum(share * restores[level] for level, share in needed.items())
    replay_s, interval_s = 0.0, cadence.interval_s(costs[-1].name)
    late = late_s(costs, [cadence.every[cost.name] for cost in costs])
    for cost, waits_s in zip(reversed(costs), reversed(late), strict=True):
        # A higher level that is written more often also serves.
        interval_s = min(interval_s, cadence.interval_s(cost.name))
        replay_s += needed[cost.name] * (interval_s / 2 + waits_s)
    return Back(found.rates_per_s[kind], pieces, replay_s)


def _shares(expected: Waste, after: Mapping[str, Back]) -> dict[str, float]:
    """The fraction of the time for each part; the waste of restarts is divided in proportion to the pieces."""
    each = {
        piece: sum(back.failures_per_s * back.pieces.get(piece, 0.0) for back in after.values())
        for piece in (*PIECES, RESTORE)
    }
    whole = sum(each.values())
    shares = {piece: expected.restart * seconds / whole if whole else 0.0 for piece, seconds in each.items()}
    return shares | {REPLAY: expected.rework, WRITING: expected.cost}
