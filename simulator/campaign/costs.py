"""The cost of each level for a job, and the failures that need it: the input for the cadence.

A copy survives the loss of its node, not that of the partner as well. So of the failures that need a level on the
nodes, a share needs a higher level: those that strike while the storage that this level needs is already gone. Lost
storage is out until the job has come back and what was lost is rebuilt, which takes W seconds where nothing strikes
meanwhile. Every failure begins that anew, so failures come in *rows* that are less than W apart: with failures at a
rate r, one is followed by another in its row with the probability q = 1 - exp(-r W). Each takes one node or another;
a level that survives t losses of g nodes fails where t + 1 different ones of them are out, and there the row is over.
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

#: Nodes struck of a class, tried at so many places, since what survives may depend on where.
_TRIED_PLACES = 16
#: The file system gets a checkpoint so often all the same, in seconds.
AT_LEAST_S = 3600.0
#: Name of the level that stands for starting from nothing, in messages.
NOTHING = "none"


@dataclass(frozen=True, slots=True)
class Survival:
    """The failures that a job survives, and the levels from which it does."""

    #: failure class -> the cheapest level that survives it wherever it strikes; "none" where no level does
    needs: dict[str, str]
    rates_per_s: dict[str, float]  # failure class -> how often
    #: failure class -> level -> the share of its failures that need it, since they do not come alone
    shares: dict[str, dict[str, float]]

    @property
    def unprotected(self) -> list[str]:
        """Classes that happen and that no level survives."""
        return [kind for kind, rate in self.rates_per_s.items() if rate > 0 and self.needs[kind] == NOTHING]


def survival(planned: Planned) -> Survival:
    """Ask the restart planner, class by class and level by level."""
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
    """The levels that failures of a class need, since some strike while an earlier one's loss is not made good yet."""
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
    """How failures follow one another, where coming back and rebuilding takes so long undisturbed."""
    every = sum(rates.values())
    if not every:
        return Rows(0.0, 0.0)
    groups = planned.job.machine.failures.groups.values()
    of_one = rates["node"] / planned.nodes + sum(1 / group.mtbf for group in groups)
    needing = sum(rate for kind, rate in rates.items() if needs[kind] in REDUNDANT_LEVELS)
    beyond = sum(rate for kind, rate in rates.items() if needs[kind] in (Level.PERSISTENT, NOTHING))
    return Rows(-math.expm1(-every * undisturbed_s), of_one / every, needing / every, beyond / every)


def level_costs(planned: Planned, found: Survival | None = None) -> list[LevelCost]:
    """Costs, latencies, restarts and failure rates of the levels that are on, cheapest first."""
    known = survival(planned) if found is None else found
    world = planned.on(planned.nodes)
    machine = planned.job.machine
    complete = world.times.complete(flushed=False)
    written = replace(world.times, commit=0.0).complete(flushed=False)  # nothing is written while a commit is awaited
    costs: list[LevelCost] = []
    before = world.times.blocked_s
    for number, level in enumerate(_levels(planned)):
        done = complete[level]
        rate = sum(known.rates_per_s[kind] * known.shares[kind].get(level, 0.0) for kind in known.needs)
        busy = max(0.0, written[level] - before)
        # Training waits for the call itself once, and is slower while the background works.
        cost = (world.times.blocked_s if number == 0 else 0.0) + machine.interference * busy
        apart = busy
        if level == Level.PERSISTENT:
            # The file system is written to for as long as the flush takes, also while copies hide it from the job.
            unlimited = math.isinf(planned.job.flush_bandwidth)
            flush_s = max(busy, world.times.stages()[Level.PERSISTENT])
            apart = flush_s / (planned.job.flush_share if unlimited else 1.0)
        costs.append(LevelCost(level, cost, done, apart, _restart_s(planned, known, level), rate))
        before = max(before, done)
    return costs


def _coming_back_s(planned: Planned, kind: str, level: str) -> float:
    """From a failure of a class that needs a level until training goes on."""
    pieces = pieces_s(planned.job.machine.restart, planned.job.ranks, {kind})
    return sum(pieces.values()) + restored_s(planned, level)


def restored_s(planned: Planned, level: str) -> float:
    """Reading the state back after a failure that needs a level."""
    # All comes from the file system if that is needed, also where few nodes are lost: by default one step stays on the
    # others, and most often a newer one than was flushed last.
    nodes = planned.nodes
    lost = 1 if level in REDUNDANT_LEVELS else nodes if level == Level.PERSISTENT else 0
    parts = {Level.LOCAL: nodes - lost, level: lost} if lost < nodes else {level: lost}
    return planned.on(nodes).restore_s({name: count for name, count in parts.items() if count}, nodes)


def _restart_s(planned: Planned, known: Survival, level: str) -> float:
    """From a failure that needs a level until training goes on, on average over the classes that need it."""
    rates = {kind: known.rates_per_s[kind] * known.shares[kind].get(level, 0.0) for kind in known.needs}
    total = sum(rates.values())
    if not total:  # which then counts for nothing
        return _coming_back_s(planned, "system" if level == Level.PERSISTENT else "node", level)
    return sum(rate * _coming_back_s(planned, kind, level) for kind, rate in rates.items() if rate) / total


def often_enough(costs: Sequence[LevelCost], cadence: Cadence) -> Cadence:
    """A cadence in which the file system gets a checkpoint now and then: jobs end, and not everything is foreseen."""
    most = max(1, round(AT_LEAST_S / cadence.period_s))
    if cadence.every.get(Level.PERSISTENT, 0) < MOST_EVERY or most >= MOST_EVERY:
        return cadence
    on_nodes = math.lcm(*(n for level, n in cadence.every.items() if level != Level.PERSISTENT and n < MOST_EVERY))
    return cadence_of(costs, cadence.period_s, {**cadence.every, Level.PERSISTENT: -(-most // on_nodes) * on_nodes})


def cadence_of(costs: Sequence[LevelCost], period_s: float, every: Mapping[str, int]) -> Cadence:
    """A cadence with the waste that the model expects of it."""
    expected = waste(costs, period_s, [every[cost.name] for cost in costs])
    return Cadence(period_s, dict(every), expected)


def followed(cadence: Cadence) -> dict[str, int]:
    """Level -> at every how many-th call it is written; 0 for one on the nodes that is best left out."""
    return {
        level: 0 if count >= MOST_EVERY and level != Level.PERSISTENT else count
        for level, count in cadence.every.items()
    }


def training_s(costs: Sequence[LevelCost], cadence: Cadence) -> float:
    """New training between two calls: what a period is without what checkpoints cost."""
    return cadence.period_s - cost_per_call_s(costs, [cadence.every[cost.name] for cost in costs])


def _levels(planned: Planned) -> list[str]:
    """Levels that are on, in the order in which they complete, cheapest first."""
    complete = planned.on(planned.nodes).times.complete()
    return [level for level in LEVELS if level in complete]


def _survives(planned: Planned, levels: Sequence[str], struck: tuple[int, ...]) -> bool:
    if Level.PERSISTENT in levels or len(struck) == planned.nodes:  # it has all of it; nothing is left of the others
        return Level.PERSISTENT in levels
    return is_left(planned.nodes, planned.job.protection, planned.domain_nodes, tuple(levels), struck)


@lru_cache(maxsize=4096)
def is_left(
    nodes: int, protection: Protection, domain_nodes: int, levels: tuple[str, ...], struck: tuple[int, ...]
) -> bool:
    """True if a checkpoint on some levels outlives the loss of some nodes; choices ask the same again and again."""
    every = tuple(range(nodes))
    lost = _without_repeats(struck, placement(every, protection, domain_nodes))
    return recover([Stored(0, 0.0, every, set(levels), lost)], every, protection, domain_nodes) is not None


def _without_repeats(struck: Sequence[int], places: Placement) -> set[int]:
    """Of the struck nodes, those of one parity group (or one node) for each way in which groups are struck, and their
    partners: groups are independent, and those that are struck alike survive alike.
    """
    gone, groups = set(struck), dict[tuple[object, ...], list[int]]()
    for members in dict.fromkeys(places.group[place] if places.group else (place,) for place in struck):
        lost = [place for place in members if place in gone]
        story = [(members.index(place), bool(places.partner) and places.partner[place] in gone) for place in lost]
        groups.setdefault((len(members), *story), lost)
    kept = {place for lost in groups.values() for place in lost}
    return kept | {places.partner[place] for place in kept if places.partner} & gone


def _strikes(planned: Planned, kind: str) -> list[tuple[int, ...]]:
    """Sets of nodes whose storage a failure of a class may take."""
    nodes = planned.nodes
    if kind == "process":
        return [()]
    if kind == "system":
        return [tuple(range(nodes))]
    width = struck_nodes(planned.job.machine.failures, kind)
    groups = group_count(nodes, width)
    tried = sorted({groups * place // _TRIED_PLACES for place in range(_TRIED_PLACES)} | {groups - 1})
    return [nodes_of_group(group, nodes, width) for group in tried]


#: Failures of a row that come with a smaller probability are not looked at, nor those after so many.
_LEAST, _LONGEST = 1e-7, 2_000


@dataclass(frozen=True, slots=True)
class Rows:
    """How failures follow one another before everything is rebuilt."""

    again: float  # the probability that one more comes, q above
    takes: float  # the share of failures that take the storage of a given node, f above
    needing: float = 1.0  # the share of failures that need a level on the nodes other than a node's own
    beyond: float = 0.0  # the share that needs a higher one, whatever has been lost before


def share_beyond(
    level: str, struck: Sequence[int], nodes: int, rows: Rows, protection: Protection, domain_nodes: int
) -> float:
    """The share of failures striking these nodes that a level on the nodes does not survive, though it would alone."""
    places = placement(tuple(range(nodes)), protection, domain_nodes)
    these, usual = (_needed(places, level, each, protection.parity_tolerate) for each in (struck, struck[:1]))
    return _share_of_rows(these, usual, rows)


#: Nodes that are needed where some others are struck, in sets: (how many, how many of them may be out).
_Needed = tuple[tuple[int, int], ...]


def _needed(places: Placement, level: str, struck: Sequence[int], tolerate: int) -> _Needed:
    """What is needed of a level where some nodes are lost."""
    if level == Level.PARTNER:
        return ((len(_partners(places, struck)), 0),)
    groups = Counter(places.group[place] for place in struck)
    return tuple(sorted((len(members) - lost, tolerate - lost) for members, lost in groups.items()))


def _fails(needed: _Needed, failures: int, takes: float) -> float:
    """The probability that too many are out after some failures, each of which takes one or another."""

    def out(nodes: int, count: int) -> float:
        """Of so many nodes just these, whichever they are: by inclusion and exclusion."""
        left = (max(0.0, 1 - (nodes - count + more) * takes) ** failures for more in range(count + 1))
        each: float = sum((-1.0) ** more * math.comb(count, more) * chance for more, chance in enumerate(left))
        return math.comb(nodes, count) * each

    stays = math.prod(sum(out(nodes, count) for count in range(min(nodes, spare) + 1)) for nodes, spare in needed)
    return min(1.0, max(0.0, 1 - stays))


@lru_cache(maxsize=4096)
def _share_of_rows(these: _Needed, usual: _Needed, rows: Rows) -> float:
    """The share of failures that are not survived."""
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
    """Nodes with copies of these nodes' parts, and those whose copies these have."""
    gone = set(struck)
    keepers = {places.partner[place] for place in struck}
    return (keepers | {place for place, keeper in enumerate(places.partner) if keeper in gone}) - gone
