"""The best interval of checkpoints for each level, from costs and failure rates. Pure arithmetic.

Words. The *period* is the time from one checkpoint to the next; level l is written at every n_l-th one. A checkpoint
costs training the ``cost_s`` of every level that it writes. A failure *needs* level l when no cheaper level
survives it: training goes back to the newest checkpoint that is complete on level l or a higher one, and does again
what came after.

The model is that of :mod:`deeppart.plan.completion`: expected times, exactly, for failures that come at random. The
best cadence is looked for in two steps. To first order, with periods of W seconds of which c = sum(C_l / n_l) are cost,
and failure rates r_l,

    efficiency = (1 - c / W) (1 - sum r_l (R_l + d_l + m_l W / 2))

where m_l is the smallest of n_l and those of the levels above. Without the rounding to whole numbers n_l is in
proportion to sqrt(C_l / r_l), which gives every level an interval of sqrt(2 C_l / r_l). What lies around these is
compared exactly, each with the period that suits it.

Sources. To first order: J. W. Young, Comm. ACM 17(9), 1974; several levels: A. Benoit, A. Cavelan, V. Le Fevre, Y.
Robert, H. Sun, Towards Optimal Multi-Level Checkpointing, IEEE Trans. Computers 66(7), 2017. To a higher order: J. T.
Daly, Future Generation Computer Systems 22, 2006.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from deeppart.errors import ConfigError
from deeppart.model import show_seconds, show_share
from deeppart.plan.completion import Comebacks, comebacks, cost_per_call_s, expected_s
from deeppart.plan.multiples import MOST_EVERY, apart, around, neighbours

#: Share of the time that a job means to be writing at most to a file system which others use too, unless it has a
#: ``flush_bandwidth``: then that is the limit. Assumed: a flush slows training little, but others more.
FLUSH_SHARE = 0.1
#: Calls are never closer than this.
LEAST_PERIOD_S = 1e-3
#: So many cadences that are good to first order are compared exactly, at one period each.
_COMPARED = 16
#: Of these, and of those around the best, so many get the period that suits them.
_REFINED = 2
#: Waste that is less by this share is worth another round of looking around.
_WORTHWHILE = 1e-4
#: The share of the waste that multiples which do not divide each other have to save.
_WORTH_APART = 0.005
#: Calls are compared, too, that are as close as lets the rarest level be written this many times as rarely as it can.
_FURTHEST = 2.0
#: Of the logarithm of a period: the waste is flat there.
_CLOSE = 0.003
#: The numbers of a :class:`LevelCost`.
COST_FIELDS = ("cost_s", "latency_s", "busy_s", "restart_s", "failures_per_s")
#: A part of the waste that is smaller than this is not worth a word.
_LEAST_SHOWN = 1e-5


@dataclass(frozen=True, slots=True)
class LevelCost:
    """The cost of a level, and the rate of the failures that need it.

    Attributes:
        name: of the level.
        cost_s: training time that writing it once takes, beyond what the cheaper levels take: blocked, or slowed down.
        latency_s: from the beginning of the call until it is complete. If it is less than what the call costs, 0 for
            example, it is complete with the end of the call.
        busy_s: time in the background that one checkpoint of this level takes, in which the next cannot begin.
        restart_s: from a failure that needs it until training goes on from it.
        failures_per_s: rate of the failures that need it.

    Example:
        >>> import deeppart
        >>> print(deeppart.LevelCost("local", 0.2, latency_s=1.5, restart_s=3, failures_per_s=1 / 86400))
        local: costs 200 ms, complete after 1.5 s, back after 3 s, needed once in 24 h
    """

    name: str
    cost_s: float
    latency_s: float = 0.0
    busy_s: float = 0.0
    restart_s: float = 0.0
    failures_per_s: float = 0.0

    def __post_init__(self) -> None:
        for field in COST_FIELDS:
            value = getattr(self, field)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(
                    "a level's costs or failure rate are impossible",
                    expected="a finite number >= 0",
                    found=f"{field} = {value!r}",
                    where=f"level {self.name}",
                )

    def __str__(self) -> str:
        known = [f"costs {show_seconds(self.cost_s)}"]
        known += [f"complete after {show_seconds(self.latency_s)}"] if self.latency_s else []
        known += [f"busy for {show_seconds(self.busy_s)}"] if self.busy_s else []
        known += [f"back after {show_seconds(self.restart_s)}"] if self.restart_s else []
        known += [f"needed once in {show_seconds(1 / self.failures_per_s)}"] if self.failures_per_s else []
        return f"{self.name}: {', '.join(known)}"


@dataclass(frozen=True, slots=True)
class Waste:
    """The time that is not training: shares of the whole, which add up to ``total``.

    Attributes:
        cost: writing checkpoints.
        rework: doing again what was lost.
        restart: coming back.

    Example:
        >>> import deeppart
        >>> print(deeppart.Waste(cost=0.005, rework=0.006, restart=0.001))
        1.2 % of the time: 0.5 % saving, 0.6 % done again, 0.1 % coming back
    """

    cost: float
    rework: float
    restart: float

    @property
    def total(self) -> float:
        """Share of the time that is not new training; 1 where nothing gets done."""
        return min(1.0, self.cost + self.rework + self.restart)

    def __str__(self) -> str:
        parts = ((self.cost, "saving"), (self.rework, "done again"), (self.restart, "coming back"))
        shown = [f"{show_share(share)} {what}" for share, what in parts if share >= _LEAST_SHOWN]
        if not shown:
            return f"less than {show_share(_LEAST_SHOWN)} of the time"
        return f"{show_share(self.total)} of the time: {', '.join(shown)}"


@dataclass(frozen=True, slots=True)
class Cadence:
    """The interval at which each level is written.

    Attributes:
        period_s: from one call to the next.
        every: level -> at every how many-th call.
        waste: the waste that the model expects.

    Example:
        >>> import deeppart
        >>> cadence = deeppart.Cadence(20.0, {"local": 1, "persistent": 15}, deeppart.Waste(0.005, 0.006, 0.001))
        >>> cadence.interval_s("persistent")
        300.0
        >>> print(cadence)
        local every 20 s, persistent every 5 min
          expected to be lost: 1.2 % of the time: 0.5 % saving, 0.6 % done again, 0.1 % coming back
    """

    period_s: float
    every: Mapping[str, int]
    waste: Waste

    def interval_s(self, level: str) -> float:
        """Time between two checkpoints of a level."""
        return self.period_s * self.every[level]

    def __str__(self) -> str:
        levels = ", ".join(f"{level} every {show_seconds(self.interval_s(level))}" for level in self.every)
        return f"{levels}\n  expected to be lost: {self.waste}"


def young(cost_s: float, mtbf_s: float) -> float:
    """Training time between two checkpoints of one level, to first order: sqrt(2 cost * MTBF)."""
    return math.sqrt(2 * cost_s * mtbf_s)


def daly(cost_s: float, mtbf_s: float) -> float:
    """The same to a higher order (Daly 2006, equation 37); the MTBF where a checkpoint costs twice that or more."""
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    small = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(small) / 3 + small / 9) - cost_s


def waste(levels: Sequence[LevelCost], period_s: float, every: Sequence[int]) -> Waste:
    """The cost of a cadence, as shares of the whole time, by the model above."""
    return _waste(levels, comebacks(levels), period_s, every)


def _waste(levels: Sequence[LevelCost], back: Comebacks, period_s: float, every: Sequence[int]) -> Waste:
    cost_s = cost_per_call_s(levels, every)
    if cost_s >= period_s:
        return Waste(1.0, 0.0, 0.0)
    taken_s = expected_s(levels, back, period_s - cost_s, every)
    if not math.isfinite(taken_s):
        return Waste(0.0, 1 - back.share, back.share)
    useful, cost = (period_s - cost_s) / taken_s, cost_s / taken_s
    return Waste(cost, max(0.0, 1 - useful - cost - back.share), back.share)


def best(levels: Sequence[LevelCost], least_period_s: float = 0.0) -> Cadence:
    """The cadence that wastes least."""
    if not any(level.failures_per_s for level in levels):
        raise ConfigError(
            "there is no best cadence without failures",
            expected="levels, one of them at least with a failure rate above 0",
            found=f"{len(levels)} levels without any",
            where="deeppart.plan.interval.best",
        )
    search = _Search(levels, least_period_s)
    first = {every for kept in _worth_trying(len(levels)) for every in _worth_comparing(levels, kept, search)}
    return search.best_of(first)


def _worth_trying(levels: int) -> list[tuple[bool, ...]]:
    """The sets of levels to try: the cheapest and the highest always, each of those in between with and without."""
    between = product((True, False), repeat=max(0, levels - 2))
    return [(True, *middle, True)[:levels] for middle in between]


def _worth_comparing(levels: Sequence[LevelCost], kept: Sequence[bool], search: _Search) -> set[tuple[int, ...]]:
    """Multiples near the best ones to first order."""
    intervals = _intervals(levels, kept)
    periods = {max(interval, search.least_period_s) for interval in intervals if math.isfinite(interval)}
    # Where the cheapest level costs next to nothing, the others are not to be out of reach.
    periods.add(max(periods) * _FURTHEST / MOST_EVERY)
    found = {every for period in periods for every in around(intervals, max(period, LEAST_PERIOD_S))}
    # Where calls cannot be as close as they should, since the background takes that long, other multiples are nearest.
    nearest = min(found, key=lambda every: search.first_order(every)[0])
    return found | around(intervals, search.first_order(nearest)[1])


def _intervals(levels: Sequence[LevelCost], kept: Sequence[bool]) -> list[float]:
    """The interval that suits each level by itself, in seconds; none shorter than those of the cheaper levels.

    A level that is not kept leaves its failures to the next one that is. One that would be written more often than a
    cheaper one shares an interval with it: it stands in for that one.
    """
    pools: list[tuple[float, float, list[int]]] = []
    inherited = 0.0
    for place, (level, keep) in enumerate(zip(levels, kept, strict=True)):
        if not keep:
            inherited += level.failures_per_s
            continue
        cost, rate, members = level.cost_s, level.failures_per_s + inherited, [place]
        inherited = 0.0
        while pools and _interval(*pools[-1][:2]) >= _interval(cost, rate):
            more_cost, more_rate, more = pools.pop()
            cost, rate, members = cost + more_cost, rate + more_rate, more + members
        pools.append((cost, rate, members))
    intervals = [math.inf] * len(levels)
    for cost, rate, members in pools:
        for place in members:
            intervals[place] = _interval(cost, rate)
    return intervals


def _interval(cost_s: float, rate: float) -> float:
    return math.sqrt(2 * cost_s / rate) if rate else math.inf


class _Search:
    """Compares cadences; each with the period that suits it."""

    def __init__(self, levels: Sequence[LevelCost], least_period_s: float) -> None:
        self._levels, self._back, self.least_period_s = levels, comebacks(levels), least_period_s
        self._found: dict[tuple[int, ...], Cadence] = {}

    def best_of(self, first: set[tuple[int, ...]]) -> Cadence:
        """The best of the cadences to begin with, and of those around the best one, as long as these get better."""
        ranked = sorted(first, key=lambda every: (self.first_order(every)[0], every))
        best = self._best_around(self._best_among(ranked[:_COMPARED], 1.0), neighbours, _WORTHWHILE)
        return self._best_around(best, apart, _WORTH_APART)

    def _best_around(
        self, best: Cadence, others: Callable[[tuple[int, ...]], set[tuple[int, ...]]], worthwhile: float
    ) -> Cadence:
        """The best of a cadence and others like it, as long as these save such a share of the waste."""
        while True:
            every = tuple(best.every.values())
            longer = best.period_s / self.first_order(every)[1]
            better = self._best_among({every, *others(every)}, longer)
            if better.waste.total >= best.waste.total * (1 - worthwhile):
                return min(best, better, key=_preference) if worthwhile == _WORTHWHILE else best
            best = better

    def _best_among(self, candidates: Collection[tuple[int, ...]], longer: float) -> Cadence:
        """The best of some."""
        ranked = sorted(candidates, key=lambda every: (self._taken_at(every, longer), every))
        return min(map(self._at_best_period, ranked[:_REFINED]), key=_preference)

    def _per_training(self, training_s: float, every: tuple[int, ...]) -> float:
        """Time per time of training."""
        return expected_s(self._levels, self._back, training_s, every) / training_s

    def _taken_at(self, every: tuple[int, ...], longer: float) -> float:
        """The same, with a period that suits it roughly: the waste is flat around the best one."""
        cost, least = cost_per_call_s(self._levels, every), self._least_period_s(every)
        period = max(min(self.first_order(every)[1] * longer, 1e3 / self._back.rate), least, cost * (1 + 1e-6))
        return self._per_training(max(period - cost, LEAST_PERIOD_S), every)

    def first_order(self, every: tuple[int, ...]) -> tuple[float, float]:
        """Waste, not bounded by 1, and period, to first order."""
        levels = self._levels
        sure = sum(
            level.failures_per_s * (level.restart_s + max(0.0, level.latency_s - level.cost_s)) for level in levels
        )
        slope = sum(level.failures_per_s * n for level, n in zip(levels, _back(every), strict=True)) / 2
        cost = cost_per_call_s(levels, every)
        period = max(math.sqrt(cost / slope), self._least_period_s(every)) if slope else math.inf
        return cost / period + slope * period + sure, period

    def _least_period_s(self, every: tuple[int, ...]) -> float:
        busy = sum(level.busy_s / n for level, n in zip(self._levels, every, strict=True))
        return max(busy, self.least_period_s, LEAST_PERIOD_S)

    def _at_best_period(self, every: tuple[int, ...]) -> Cadence:
        if every not in self._found:
            self._found[every] = self._look_for_period(every)
        return self._found[every]

    def _look_for_period(self, every: tuple[int, ...]) -> Cadence:
        levels, least = self._levels, self._least_period_s(every)
        cost = cost_per_call_s(levels, every)

        def taken(log_training: float) -> float:
            return self._per_training(math.exp(log_training), every)

        guess = min(self.first_order(every)[1], 1 / self._back.rate)
        low = math.log(max(least - cost, LEAST_PERIOD_S, cost * 1e-6))
        training = math.exp(least_of(taken, low, math.log(max(guess, LEAST_PERIOD_S)), _CLOSE))
        period = max(training + cost, least)
        names = {level.name: n for level, n in zip(levels, every, strict=True)}
        return Cadence(period, MappingProxyType(names), _waste(levels, self._back, period, every))


def _preference(cadence: Cadence) -> tuple[float, int, float]:
    """Least is best: the waste, as far as it is known to be different, and then few different multiples."""
    return float(f"{cadence.waste.total:.5g}"), sum(cadence.every.values()), cadence.period_s


def _back(every: Sequence[int]) -> list[int]:
    """Per level, how many calls lie between two checkpoints of it or of a higher level."""
    back = list(every)
    for place in reversed(range(len(back) - 1)):
        back[place] = min(back[place], back[place + 1])
    return back


_GOLDEN = (3 - math.sqrt(5)) / 2
_MOST_STEPS = 60


def least_of(function: Callable[[float], float], low: float, guess: float, close: float) -> float:
    """Where a function with one valley is least, from ``low`` on.

    Brent's method (Algorithms for Minimization without Derivatives, 1973, chapter 5): parabolas through the lowest
    points, and golden sections where these lead nowhere, as where the function is infinite.
    """
    low, high = _bracket(function, low, max(guess, low))
    best = second = third = low + _GOLDEN * (high - low)
    at_best = at_second = at_third = function(best)
    step = before = 0.0
    for _ in range(_MOST_STEPS):
        middle = (low + high) / 2
        if abs(best - middle) + (high - low) / 2 <= 2 * close:
            break
        parabola = _parabola(best, second, third, at_best, at_second, at_third)
        if parabola is not None and abs(parabola) < abs(before) / 2 and low < best + parabola < high:
            before, step = step, parabola
        else:
            before = (high if best < middle else low) - best
            step = _GOLDEN * before
        if abs(step) < close:
            step = math.copysign(close, step or middle - best)
        new = best + step
        at_new = function(new)
        if at_new <= at_best:
            low, high = (best, high) if new >= best else (low, best)
            third, second, best = second, best, new
            at_third, at_second, at_best = at_second, at_best, at_new
            continue
        low, high = (new, high) if new < best else (low, new)
        if at_new <= at_second or second == best:
            third, second, at_third, at_second = second, new, at_second, at_new
        elif at_new <= at_third or third in (best, second):
            third, at_third = new, at_new
    return low if function(low) < at_best else best


def _bracket(function: Callable[[float], float], low: float, start: float) -> tuple[float, float]:
    """Between which two points the valley is."""
    here, step = function(start), 0.7
    down = max(low, start - step)
    at_down = function(down)
    if at_down < here or not math.isfinite(here):
        high = start
        while down > low and (at_down < here or not math.isfinite(here)):
            high, start, here = start, down, at_down
            step *= 2
            down = max(low, start - step)
            at_down = function(down)
        return down, high
    up, at_up = start + step, function(start + step)
    while at_up < here:
        down, start, here = start, up, at_up
        step *= 2
        up, at_up = start + step, function(start + step)
    return down, up


def _parabola(x: float, w: float, v: float, fx: float, fw: float, fv: float) -> float | None:
    """From the lowest of three points to the bottom of the parabola through them; None if there is none."""
    if len({x, w, v}) < 3 or not all(map(math.isfinite, (fx, fw, fv))):
        return None
    r, q = (x - w) * (fx - fv), (x - v) * (fx - fw)
    p, q = (x - v) * q - (x - w) * r, 2 * (q - r)
    return None if q == 0 else -p / q
