"""What it costs that a level is complete only some time after its call. Pure arithmetic.

Words and letters are those of :mod:`deeppart.plan.completion`. A failure finds the newest call on level f incomplete
for D_f from its end on, and then goes back to the one before. Two things follow.

*To pass D_f once more.* Training goes on from a call that is complete: only after D_f is it where the failure found the
one before to be the newest. For one level, passing D_f is expected to take (exp(r D_f) - 1) (1 / r + V), and so b and
everything is exp(r D_f) times as large, exactly. With more levels, failures that need f or more begin D_f anew, those
that need less only take time: it is passed as blocks are passed, and what b is at its beginning follows from the
higher levels' S and D.

*What was under way is lost.* A failure that needs less than f comes back to a newer call, and what was written to f in
the background is gone with its processes. Of calls T seconds apart, one is complete when no such failure strikes in
the D_f - D_g seconds after it. The one that strikes one of them strikes all that are under way then, so the newest
complete one is further back, by the number of calls (renewal theory: a run of D seconds without a failure is awaited)

    K = sum over k = 0, 1, ... of (exp(sum r_g max(0, D_f - D_g - k T)) - 1)    over levels g below f

It is as far back, at most, as the newest failure that needed f or more. And where a call is complete nothing struck in
the D_f after it, so that passing these took no longer for lower failures. With e that passing D_f takes with them, over
1 / r + V, e' without them, both + 1, and y what a block between calls on f grows b by, everything is (for two levels,
the lower one complete at once, and D_f < T, exactly)

    (e + e' y (1 + K)) / (1 + y)    times as large

Levels whose calls are the same, and complete at the same time, are as good as one: the higher one's D is in the lower
one's already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

#: exp() of more is nothing that ends.
MOST_EXPONENT = 500.0
#: Levels with the same calls are as good as one if these are complete at the same time, and two if they are by so much
#: of it apart.
_APART = 0.2
#: Of more calls that are under way at once, so many stand for all.
_MOST_COUNTED = 500
#: A pattern whose multiples do not divide each other is walked through, call by call, if it is no longer than that.
MOST_WALKED = 2_000
#: A level that is written at every so many-th call is not what others are as good as complete by, and costs as if it
#: were spread over all of them.
RARE = 1_000


class Late(Protocol):
    """What is needed of a level."""

    @property
    def cost_s(self) -> float:
        """Of writing it once."""
        ...

    @property
    def latency_s(self) -> float:
        """From the beginning of the call until it is complete, or less than what the call costs: with its end."""
        ...


def late_s(levels: Sequence[Late], every: Sequence[int], period_s: float) -> list[float]:
    """By level, from the end of a call to it or a higher one until it is complete there, on average.

    A latency counts from the beginning of the call, and what the call costs is in the stretch that ends with it. A call
    that goes to both is complete enough when either is. And a call is as good as complete when a later one is, as where
    calls to a slow level come between those to a quick one.
    """
    nested = all(n % m == 0 for m, n in pairwise(every))
    ascending = all(one.latency_s <= other.latency_s for one, other in pairwise(levels))
    overtaken = not (nested and ascending) and max(level.latency_s for level in levels) > period_s
    often = tuple(n if n < RARE or n == min(every[place:]) else 0 for place, n in enumerate(every))
    if overtaken and math.lcm(*filter(None, often)) <= MOST_WALKED:
        return _walked(levels, often, period_s)
    # By level, what calls cost of which it is the highest.
    call_s = [
        level.cost_s + sum(lower.cost_s * n / math.lcm(n, m) for lower, m in zip(levels, every[:place], strict=False))
        for place, (level, n) in enumerate(zip(levels, every, strict=True))
    ]
    found = []
    for place in range(len(levels)):
        rates = [1 / min(every[place:])]
        rates += [min(rates[0], 1 / min(every[higher:])) for higher in range(place + 1, len(levels))] + [0.0]
        mean_s = 0.0
        for at, (rate, of_higher) in enumerate(pairwise(rates), place):
            if rate > of_higher:
                mean_s += _earliest_s(levels, every, place, at, call_s[at]) * (rate - of_higher) / rates[0]
        found.append(mean_s)
    return found


def _walked(levels: Sequence[Late], every: tuple[int, ...], period_s: float) -> list[float]:
    """The same, call by call over a pattern; levels at 0 have no calls."""
    due = _due(every)
    latencies_s, costs_s = (np.array(each) for each in zip(*((it.latency_s, it.cost_s) for it in levels), strict=True))
    ends_s = period_s * np.arange(1, 2 * due.shape[1] + 1)
    found = []
    for first in range(len(levels)):
        soonest_s = np.where(due[first:], latencies_s[first:, None], np.inf).min(axis=0)
        complete_s = np.tile(np.maximum(0.0, soonest_s - costs_s @ due), 2) + ends_s
        complete_s = np.minimum.accumulate(complete_s[::-1])[::-1]  # the second time round is what comes after
        found.append(float((complete_s - ends_s)[: due.shape[1]][due[first:].any(axis=0)].mean()))
    return found


@lru_cache(maxsize=64)
def _due(every: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """bool[levels, calls]: what goes where, over a pattern."""
    calls = math.lcm(*filter(None, every))
    found: npt.NDArray[np.bool_] = np.arange(1, calls + 1) % np.array([n or calls + 1 for n in every])[:, None] == 0
    return found


def _earliest_s(levels: Sequence[Late], every: Sequence[int], place: int, at: int, call_s: float) -> float:
    """From the end of a call whose highest level is ``at`` until one of its levels from ``place`` on is complete."""
    shares = ((levels[each].latency_s, every[at] / math.lcm(every[at], every[each])) for each in range(place, at + 1))
    mean_s, others = 0.0, 1.0
    for latency_s, share in sorted(shares):  # of these calls, so many go to that level, too
        mean_s += others * share * max(0.0, latency_s - call_s)
        others *= 1 - share
    return mean_s


def factor(
    levels: Sequence[Late], every: Sequence[int], period_s: float, rate: float, highest: Sequence[float], grown: float
) -> float:
    """How many times as long everything takes, as if each level were complete with the end of its call.

    Infinite if nothing gets done.
    """
    late = late_s(levels, every, period_s)
    if not any(late):
        return 1.0
    places = range(len(every))
    back = [min(every[place:]) for place in places]
    passed = [_passed(late[place], place, period_s, rate, highest, back) for place in places]
    reach = _reach(grown / math.expm1(rate * period_s), highest, back)
    # At a call on f, b is the sum of u_f (1 / r + V) and v_f times what (1 / r + V) has grown to: from the top down.
    u, v = [1.0] * len(every), [0.0] * len(every)
    for place in reversed(places):
        for g in places[place + 1 :]:
            apart = 1.0 if back[g] > back[place] else _apart(late[place], late[g])
            u[place] += apart * highest[g] * passed[g] * u[g]
            v[place] += apart * (reach[g] + highest[g] * passed[g] * v[g])
    again = sum(highest[f] * passed[f] * u[f] for f in places)
    more = sum(highest[f] * passed[f] * v[f] for f in places)
    more += _never_complete(late, passed, period_s, rate, highest, back, grown)
    found = (1 + again) / (1 - more) if more < 1 else math.inf
    return found if math.isfinite(found) else math.inf


def _passed(
    late_s: float, place: int, period_s: float, rate: float, highest: Sequence[float], back: Sequence[int]
) -> float:
    """What it takes to pass so many seconds after a call, in b as of its end."""
    if place == 0 or late_s <= period_s:
        return _exp_less_1(rate * late_s)
    block_s, x = period_s, math.expm1(rate * period_s)
    for level in range(1, place + 1):
        longest_s = math.inf if level == place else back[level] * period_s
        rest = sum(highest[level:])
        count = min(late_s, longest_s) / block_s
        grows = _exp_less_1(count * math.log1p(x * rest)) / rest if rest else count * x
        if late_s <= longest_s:
            return grows
        block_s, x = longest_s, grows
    raise AssertionError("the last of the blocks has no end")


def _reach(stretched: float, highest: Sequence[float], back: Sequence[int]) -> list[float]:
    """By level F S, on average over all calls: all of them together are what b has more than 1 / r + V."""
    weights = [share * (n - 1) for share, n in zip(highest, back, strict=True)]
    whole = sum(weights)
    return [(stretched - 1) * weight / whole if whole else 0.0 for weight in weights]


def _never_complete(
    late: Sequence[float],
    passed: Sequence[float],
    period_s: float,
    rate: float,
    highest: Sequence[float],
    back: Sequence[int],
    grown: float,
) -> float:
    """What S grows by, since calls are lost in the background, weighted by F."""
    found = 0.0
    for place in range(1, len(back)):
        strikes = [(rate * highest[g], max(0.0, late[place] - late[g])) for g in range(place)]
        lost, rest = lost_in_a_row(strikes, back[place] * period_s), sum(highest[place:])
        if lost and rest:
            slower = (1 + rest * passed[place]) * math.exp(-rate * rest * late[place])  # e / e'
            nearer, block = slower / (1 + lost), back[place] * grown
            found += block * highest[place] * (1 - nearer) / (nearer + block * rest)
    return found


def lost_in_a_row(strikes: Sequence[tuple[float, float]], between_s: float) -> float:
    """How many calls the newest complete one is further back than without failures, on average."""
    under_way = max(for_s for _, for_s in strikes) / between_s
    counted = min(math.ceil(under_way), _MOST_COUNTED)
    each_s = between_s * under_way / counted if under_way > _MOST_COUNTED else between_s
    since_s = each_s * np.arange(counted)[:, None]
    rates, for_s = np.array(strikes).T
    exponents = (rates * np.maximum(0.0, for_s - since_s)).sum(axis=1)
    counts: float = np.expm1(np.minimum(exponents, MOST_EXPONENT)).sum()
    return float(counts * each_s / between_s)


def _apart(late_s: float, higher_s: float) -> float:
    """From 0, for levels that are as good as one where their calls are the same, to 1."""
    return min(1.0, max(0.0, (1 - late_s / higher_s) / _APART)) if higher_s else 1.0


def _exp_less_1(exponent: float) -> float:
    return math.expm1(min(exponent, MOST_EXPONENT))
