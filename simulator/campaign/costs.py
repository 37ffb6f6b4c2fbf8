"""The cost of each level for a job, and the failures that need it: the input for the cadence.

A level on nodes survives the loss of one node, but not of its partner as well. So some of the failures that need such a
level need a higher one: those that strike while storage that this level depends on is already lost. Storage stays lost
until the job is back and has rebuilt it, which takes W seconds if no other failure follows. Each failure starts this
time anew, so failures form *rows* in which they are less than W apart: at a failure rate r, another one follows in the
same row with probability q = 1 - exp(-r W). Each failure takes some node. A level that survives t losses among g nodes
fails once t + 1 different ones of them are lost, which ends the row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean

from deeppart.model import LEVELS, REDUNDANT_LEVELS, Level
from deeppart.plan.interval import MOST_EVERY, Cadence, LevelCost, cost_per_call_s, waste

from ..timing.stages import Protection
from .failures import classes, group_count, nodes_of_group, pieces_s, rates_per_s, struck_nodes
from .plan import Planned
from .survival import Placement, Stored, placement, recover

#: Groups of nodes that are tried for each failure class, since survival may depend on which group is struck.
_TRIED_PLACES = 16
#: Most seconds between checkpoints on the file system, even if a longer interval would waste less.
AT_LEAST_S = 3600.0
#: Pseudo-level: no level survives, and the job starts from nothing.
NOTHING = "none"


@dataclass(frozen=True, slots=True)
class Survival:
    """The failures that a job survives, and by which level."""

    #: failure class -> the cheapest level that survives it on any nodes; "none" if no level does
    needs: dict[str, str]
    rates_per_s: dict[str, float]  # failure class -> failures per second
    #: failure class -> level -> share of its failures that need this level, given earlier failures in the same row
    shares: dict[str, dict[str, float]]

    @property
    def unprotected(self) -> list[str]:
        """Classes with a rate above 0 that no level survives."""
        return [kind for kind, rate in self.rates_per_s.items() if rate > 0 and self.needs[kind] == NOTHING]


def survival(planned: Planned) -> Survival:
    """Ask the restart planner which level survives each failure class."""
    on = _levels(planned)
    rates = rates_per_s(planned.job)
    needs = {}
    kinds = classes(planned.job.machine.failures)
    for kind in kinds:
        needs[kind] = NOTHING
        for count in range(1, len(on) + 1):
            if all(_survives(planned, on[:count], struck) for struck in _strikes(planned, kind)):
                needs[kind] = on[count - 1]
                break
    return Survival(needs, rates, {kind: _shares(planned, on, kind, needs, rates) for kind in kinds})


def _shares(
    planned: Planned, on: Sequence[str], kind: str, needs: Mapping[str, str], rates: Mapping[str, float]
) -> dict[str, float]:
    """Level -> share of a class's failures that need it; some strike before an earlier loss is repaired."""
    world = planned.on(planned.nodes)
    found, left, need = dict[str, float](), 1.0, needs[kind]
    for level in REDUNDANT_LEVELS[REDUNDANT_LEVELS.index(need) :] if need in REDUNDANT_LEVELS else ():
        if level not in on:
            continue
        undisturbed_s = _coming_back_s(planned, kind, level) + world.heal_s
        rows = _rows(planned, needs, rates, undisturbed_s)
        beyond = fmean(
            share_beyond(level, struck, planned.nodes, rows, planned.job.protection, planned.domain_nodes)
            for struck in _strikes(planned, kind)
        )
        found[level] = left * (1 - beyond)
        left *= beyond
    last = need if need not in REDUNDANT_LEVELS else Level.PERSISTENT if Level.PERSISTENT in on else NOTHING
    found[last] = left
    return found


def _rows(planned: Planned, needs: Mapping[str, str], rates: Mapping[str, float], undisturbed_s: float) -> Rows:
    """The rows of failures if coming back and rebuilding takes ``undisturbed_s`` without another failure."""
    every = sum(rates.values())
    if not every:
        return Rows(0.0, 0.0)
    groups = planned.job.machine.failures.groups.values()
    of_one = rates["node"] / planned.nodes + sum(1 / group.mtbf for group in groups)
    needing = sum(rate for kind, rate in rates.items() if needs[kind] in REDUNDANT_LEVELS)
    beyond = sum(rate for kind, rate in rates.items() if needs[kind] in (Level.PERSISTENT, NOTHING))
    return Rows(-math.expm1(-every * undisturbed_s), of_one / every, needing / every, beyond / every)


def level_costs(planned: Planned, found: Survival | None = None) -> list[LevelCost]:
    """Costs, latencies, restart times and failure rates of the levels in use, cheapest first."""
    known = survival(planned) if found is None else found
    world = planned.on(planned.nodes)
    machine = planned.job.machine
    complete = world.times.complete(flushed=False)
    written = replace(world.times, commit=0.0).complete(flushed=False)  # nothing is written during commits
    costs: list[LevelCost] = []
    before = world.times.blocked_s
    for number, level in enumerate(_levels(planned)):
        done = complete[level]
        rate = sum(known.rates_per_s[kind] * known.shares[kind].get(level, 0.0) for kind in known.needs)
        busy = max(0.0, written[level] - before)
        # Training waits for the call once, and is slower while the background works.
        cost = (world.times.blocked_s if number == 0 else 0.0) + machine.interference * busy
        apart = busy
        if level == Level.PERSISTENT:
            # The file system is busy for the whole flush, even while copies to other nodes hide it from the job.
            unlimited = math.isinf(planned.job.flush_bandwidth)
            flush_s = max(busy, world.times.stages()[Level.PERSISTENT])
            apart = flush_s / (planned.job.flush_share if unlimited else 1.0)
        costs.append(LevelCost(level, cost, done, apart, _restart_s(planned, known, level), rate))
        before = max(before, done)
    return costs


def _coming_back_s(planned: Planned, kind: str, level: str) -> float:
    """Seconds from a failure of a class, restored from ``level``, until training continues."""
    pieces = pieces_s(planned.job.machine.restart, planned.job.ranks, {kind})
    return sum(pieces.values()) + restored_s(planned, level)


def restored_s(planned: Planned, level: str) -> float:
    """Seconds for reading the state after a failure that needs ``level``."""
    # If the file system is needed, everything is read from it, even if few nodes are lost: by default the other nodes
    # keep one step, which is usually newer than the one flushed last.
    nodes = planned.nodes
    lost = 1 if level in REDUNDANT_LEVELS else nodes if level == Level.PERSISTENT else 0
    parts = {Level.LOCAL: nodes - lost, level: lost} if lost < nodes else {level: lost}
    return planned.on(nodes).restore_s({name: count for name, count in parts.items() if count}, nodes)


def _restart_s(planned: Planned, known: Survival, level: str) -> float:
    """Seconds from a failure that needs ``level`` until training continues, averaged over the classes that need it."""
    rates = {kind: known.rates_per_s[kind] * known.shares[kind].get(level, 0.0) for kind in known.needs}
    total = sum(rates.values())
    if not total:  # the value is not used then
        return _coming_back_s(planned, "system" if level == Level.PERSISTENT else "node", level)
    return sum(rate * _coming_back_s(planned, kind, level) for kind, rate in rates.items() if rate) / total


def often_enough(costs: Sequence[LevelCost], cadence: Cadence) -> Cadence:
    """A cadence that flushes at least every :data:`AT_LEAST_S`, since jobs also end for reasons not modeled here."""
    most = max(1, round(AT_LEAST_S / cadence.period_s))
    if cadence.every.get(Level.PERSISTENT, 0) < MOST_EVERY or most >= MOST_EVERY:
        return cadence
    on_nodes = math.lcm(*(n for level, n in cadence.every.items() if level != Level.PERSISTENT and n < MOST_EVERY))
    return cadence_of(costs, cadence.period_s, {**cadence.every, Level.PERSISTENT: -(-most // on_nodes) * on_nodes})


def cadence_of(costs: Sequence[LevelCost], period_s: float, every: Mapping[str, int]) -> Cadence:
    """A cadence with its expected waste by the model."""
    expected = waste(costs, period_s, [every[cost.name] for cost in costs])
    return Cadence(period_s, dict(every), expected)


def followed(cadence: Cadence) -> dict[str, int]:
    """Level -> n if every n-th call writes it; 0 for a level on nodes that is best left out."""
    return {
        level: 0 if count >= MOST_EVERY and level != Level.PERSISTENT else count
        for level, count in cadence.every.items()
    }


def training_s(costs: Sequence[LevelCost], cadence: Cadence) -> float:
    """Seconds of new training between two calls: the period minus the cost of checkpoints."""
    return cadence.period_s - cost_per_call_s(costs, [cadence.every[cost.name] for cost in costs])


def _levels(planned: Planned) -> list[str]:
    """The levels in use, in the order in which they complete, cheapest first."""
    complete = planned.on(planned.nodes).times.complete()
    return [level for level in LEVELS if level in complete]


def _survives(planned: Planned, levels: Sequence[str], struck: tuple[int, ...]) -> bool:
    if Level.PERSISTENT in levels or len(struck) == planned.nodes:  # the file system has everything, lost nodes nothing
        return Level.PERSISTENT in levels
    return is_left(planned.nodes, planned.job.protection, planned.domain_nodes, tuple(levels), struck)


@lru_cache(maxsize=4096)
def is_left(
    nodes: int, protection: Protection, domain_nodes: int, levels: tuple[str, ...], struck: tuple[int, ...]
) -> bool:
    """True if a checkpoint at these levels survives the loss of these nodes. Cached, since choices repeat questions."""
    every = tuple(range(nodes))
    lost = _without_repeats(struck, placement(every, protection, domain_nodes))
    return recover([Stored(0, 0.0, every, set(levels), lost)], every, protection, domain_nodes) is not None


def _without_repeats(struck: Sequence[int], places: Placement) -> set[int]:
    """Reduce the struck nodes to one parity group (or node) for each pattern of losses, and their partners: groups are
    independent, and equal patterns have equal outcomes.
    """
    gone, groups = set(struck), dict[tuple[object, ...], list[int]]()
    for members in dict.fromkeys(places.group[place] if places.group else (place,) for place in struck):
        lost = [place for place in members if place in gone]
        story = [(members.index(place), bool(places.partner) and places.partner[place] in gone) for place in lost]
        groups.setdefault((len(members), *story), lost)
    kept = {place for lost in groups.values() for place in lost}
    return kept | {places.partner[place] for place in kept if places.partner} & gone


def _strikes(planned: Planned, kind: str) -> list[tuple[int, ...]]:
    """Sets of nodes whose storage a failure of this class may take."""
    nodes = planned.nodes
    if kind == "process":
        return [()]
    if kind == "system":
        return [tuple(range(nodes))]
    width = struck_nodes(planned.job.machine.failures, kind)
    groups = group_count(nodes, width)
    tried = sorted({groups * place // _TRIED_PLACES for place in range(_TRIED_PLACES)} | {groups - 1})
    return [nodes_of_group(group, nodes, width) for group in tried]


#: Rows are cut where the probability falls below the first value, and at this many failures.
_LEAST, _LONGEST = 1e-7, 2_000


@dataclass(frozen=True, slots=True)
class Rows:
    """Failures that follow one another before everything is rebuilt."""

    again: float  # probability of another failure in the row, q above
    takes: float  # share of failures that take the storage of a given node
    needing: float = 1.0  # share of failures that need copies or parity
    beyond: float = 0.0  # share of failures that need a higher level, whatever was lost before


def share_beyond(
    level: str, struck: Sequence[int], nodes: int, rows: Rows, protection: Protection, domain_nodes: int
) -> float:
    """Share of failures of these nodes that a level on nodes survives alone, but not within a row of failures."""
    places = placement(tuple(range(nodes)), protection, domain_nodes)
    these, usual = (_needed(places, level, each, protection.parity_tolerate) for each in (struck, struck[:1]))
    return _share_of_rows(these, usual, rows)


#: Sets of nodes that are needed after a failure: (number of nodes, how many of them may be lost).
_Needed = tuple[tuple[int, int], ...]


def _needed(places: Placement, level: str, struck: Sequence[int], tolerate: int) -> _Needed:
    """The nodes that a level needs after the loss of ``struck``."""
    if level == Level.PARTNER:
        return ((len(_partners(places, struck)), 0),)
    groups = Counter(places.group[place] for place in struck)
    return tuple(sorted((len(members) - lost, tolerate - lost) for members, lost in groups.items()))


def _fails(needed: _Needed, failures: int, takes: float) -> float:
    """The probability that too many nodes are lost after ``failures`` failures, each of which takes a random node."""

    def out(nodes: int, count: int) -> float:
        """The probability that exactly ``count`` of ``nodes`` nodes are lost, by inclusion and exclusion."""
        left = (max(0.0, 1 - (nodes - count + more) * takes) ** failures for more in range(count + 1))
        each: float = sum((-1.0) ** more * math.comb(count, more) * chance for more, chance in enumerate(left))
        return math.comb(nodes, count) * each

    stays = math.prod(sum(out(nodes, count) for count in range(min(nodes, spare) + 1)) for nodes, spare in needed)
    return min(1.0, max(0.0, 1 - stays))


@lru_cache(maxsize=4096)
def _share_of_rows(these: _Needed, usual: _Needed, rows: Rows) -> float:
    """The share of failures that the level does not survive."""
    if rows.again >= 1:  # nothing is ever rebuilt
        return 1.0
    longest = 1 if not rows.again else min(_LONGEST, 2 + math.ceil(math.log(_LEAST) / math.log(rows.again)))
    reached, beyond, counted = 1.0, 0.0, 0.0
    for failures in range(longest):
        beyond, counted = beyond + reached * _fails(these, failures, rows.takes), counted + reached
        reached *= rows.again * max(0.0, 1 - rows.needing * _fails(usual, failures, rows.takes) - rows.beyond)
        if reached < _LEAST * counted:
            break
    return beyond / counted


def _partners(places: Placement, struck: Sequence[int]) -> set[int]:
    """The nodes with copies of these nodes' parts, and the nodes whose copies are on these nodes."""
    gone = set(struck)
    keepers = {places.partner[place] for place in struck}
    return (keepers | {place for place, keeper in enumerate(places.partner) if keeper in gone}) - gone
