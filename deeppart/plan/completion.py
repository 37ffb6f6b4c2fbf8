"""The time that a job with checkpoints takes, as an exact expectation. Pure arithmetic.

Words are those of :mod:`deeppart.plan.interval`: calls, levels, a failure that *needs* a level.

The model. A job trains for t seconds, makes a call that costs it what the levels due cost, and so on. Failures of each
kind come at random, independent of one another and of what the job does: in training, in calls, and while it comes
back from an earlier one. A failure that needs level l ends what is going on; it takes R_l to come back, unless another
failure strikes, and training goes on from the newest call that is complete on level l or a higher one.

With rate r in all, a stretch of L seconds, with its call, is expected to take x b, where x = exp(r L) - 1 and

    b = 1 / r + V + sum F_f S_f

V: the time to come back, all attempts together. F_f: the share of failures after which f is the highest level that is
needed. S_f: the time that it has taken to come here from the end of the newest call on level f or a higher one, and
takes once more. Everything is in proportion to b, and a stretch adds x b to each S, until a call makes it 0. So calls
to the cheapest level alone, whose b grows by 1 + x P with P = sum of F_f over the other levels, are a geometric series,
and blocks of them are stretches of the next level:

    g = (1 + x P)^(n - 1),    x of the block = (g - 1) / P + g x of its last stretch

For one level without latency it is Daly's complete model (Daly 2006, equation 20). What it costs that levels are
complete some time after their calls is in :mod:`deeppart.plan.lateness`: exact for one level, close for more.

Sources. J. T. Daly, Future Generation Computer Systems 22, 2006; A. Moody, G. Bronevetsky, K. Mohror, B. R. de
Supinski, SC 2010 (section 4: the same states and failures by level, there as a chain that is solved).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from deeppart.plan.lateness import MOST_EXPONENT, MOST_WALKED, RARE, factor


class Costs(Protocol):
    """What is needed of a level."""

    @property
    def cost_s(self) -> float:
        """Of writing it once."""
        ...

    @property
    def latency_s(self) -> float:
        """From the beginning of the call until it is complete, or less than what the call costs: with its end."""
        ...

    @property
    def restart_s(self) -> float:
        """Until training goes on from it."""
        ...

    @property
    def failures_per_s(self) -> float:
        """Of those that need it."""
        ...


@dataclass(frozen=True, slots=True)
class Comebacks:
    """What follows failures, whatever the cadence.

    Attributes:
        rate: of all failures, per second.
        mean_s: time to come back from one, with those that strike meanwhile.
        share: of the time, where a job does nothing but train and come back; of what is left, more.
        highest: by level, the share of failures after which it is the highest that is needed, once training goes on.
    """

    rate: float
    mean_s: float
    share: float
    highest: tuple[float, ...]


def comebacks(levels: Sequence[Costs]) -> Comebacks:
    """What follows failures of these levels. The mean is infinite where nobody ever comes back."""
    rates = [level.failures_per_s for level in levels]
    rate = sum(rates)
    if not rate:
        return Comebacks(0.0, 0.0, 0.0, (0.0,) * len(levels))
    count = len(levels)
    exponents = [rate * level.restart_s for level in levels]
    if max(exponents) > MOST_EXPONENT:
        return Comebacks(rate, math.inf, 1.0, tuple(each / rate for each in rates))
    fails = [-math.expm1(-each) for each in exponents]
    attempt_s = [each / rate for each in fails]
    # From an attempt at level l: it ends there, or another failure makes it one at the higher of the two levels.
    mean_s, ends = [0.0] * count, [[0.0] * count for _ in levels]
    for level in reversed(range(count)):
        stays = sum(rates[: level + 1]) / rate
        higher = [(place, rates[place] / rate) for place in range(level + 1, count)]
        # What ends it here or at a higher level; nearly 0, where hardly any attempt is without a failure.
        over = sum(part for _, part in higher) + stays * math.exp(-exponents[level])
        mean_s[level] = (attempt_s[level] + fails[level] * sum(part * mean_s[place] for place, part in higher)) / over
        for end in range(level, count):
            onward = sum(part * ends[place][end] for place, part in higher)
            ends[level][end] = ((math.exp(-exponents[level]) if end == level else 0.0) + fails[level] * onward) / over
    mean = sum(part / rate * each for part, each in zip(rates, mean_s, strict=True))
    highest = [sum(rates[first] / rate * ends[first][end] for first in range(count)) for end in range(count)]
    return Comebacks(rate, mean, rate * mean / (1 + rate * mean), tuple(highest))


def cost_per_call_s(levels: Sequence[Costs], every: Sequence[int]) -> float:
    """What a call costs training, on average."""
    return sum(level.cost_s / n for level, n in zip(levels, every, strict=True))


def expected_s(levels: Sequence[Costs], back: Comebacks, training_s: float, every: Sequence[int]) -> float:
    """Expected time from one call to the next, rework included; infinite if nothing gets done."""
    period_s = training_s + cost_per_call_s(levels, every)
    if not back.rate:
        return period_s
    if back.rate * (training_s + sum(level.cost_s for level in levels)) > MOST_EXPONENT:
        return math.inf
    try:
        grown = _grown(levels, back, training_s, every)
    except OverflowError:
        return math.inf
    late = factor(levels, every, period_s, back.rate, back.highest, grown) if grown else 1.0
    taken_s = grown * late * (1 / back.rate + back.mean_s)
    return taken_s if math.isfinite(taken_s) else math.inf


def _grown(levels: Sequence[Costs], back: Comebacks, training_s: float, every: Sequence[int]) -> float:
    """The x of a stretch, on average.

    A pattern that is too long to be walked through is taken for blocks of which so many and a fraction make the next,
    or its beginning for all of it.
    """
    kept, highest, inherited = list[int](), list[float](), 0.0
    newest = [n <= min(every[place + 1 :], default=n) for place, n in enumerate(every)]
    walkable = math.lcm(*(n for n, is_newest in zip(every, newest, strict=True) if is_newest or n < RARE))
    least = RARE if walkable <= MOST_WALKED else 0
    for place, n in enumerate(every):
        inherited += back.highest[place]
        if n < least or (newest[place] and (inherited or n < RARE)):
            kept.append(place)
            highest.append(inherited)
            inherited = 0.0
        else:  # hardly ever what a failure goes back to: it costs a little at each call
            training_s += levels[place].cost_s / n
    multiples, costs = [every[place] for place in kept], [levels[place].cost_s for place in kept]

    def growth(due: tuple[int, ...]) -> float:
        return math.expm1(back.rate * (training_s + sum(costs[place] for place in due)))

    nested = all(n % m == 0 for m, n in pairwise(multiples))
    ascending = all(n >= m for m, n in pairwise(multiples))
    if multiples[0] == 1 and (nested or (ascending and math.lcm(*multiples) > MOST_WALKED)):
        ends = [growth(tuple(range(place + 1))) for place in range(len(kept))]
        return _nested(ends, highest, multiples) / multiples[-1]
    return _walked(growth, highest, multiples)


def _nested(ends: list[float], highest: Sequence[float], every: Sequence[int]) -> float:
    """The x of a whole pattern, whose multiples are multiples of each other, or nearly so for how large they are."""
    for level in range(1, len(ends)):
        count = every[level] / every[level - 1] - 1
        rest = sum(highest[level:])
        steps = count * math.log1p(ends[level - 1] * rest)
        before = math.expm1(steps) / rest if rest else count * ends[level - 1]
        ends = [before + math.exp(steps) * end for end in ends]
    return ends[-1]


def _walked(growth: Callable[[tuple[int, ...]], float], highest: Sequence[float], every: Sequence[int]) -> float:
    """The x of a call, on average over a pattern of any multiples; of a very long one, over the first calls."""
    number = min(math.lcm(*every), MOST_WALKED)
    growths: dict[tuple[int, ...], float] = {}
    since = [0.0] * len(every)  # S of each level, in b of the beginning
    whole = 0.0
    for call in range(1, number + 1):
        due = tuple(place for place, n in enumerate(every) if call % n == 0)
        if due not in growths:
            growths[due] = growth(due)
        stretch = growths[due] * (1 + sum(map(operator.mul, highest, since)))
        whole += stretch
        since = [0.0 if due and place <= due[-1] else each + stretch for place, each in enumerate(since)]
    return whole / number
