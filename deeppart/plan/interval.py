"""The best interval of checkpoints for each level, from costs and failure rates. Pure arithmetic.

The *period* W is the time from one checkpoint to the next; level l is written at every n_l-th one and costs training
C_l. A failure *needs* level l when no cheaper level survives it, and goes back to the newest checkpoint that is
complete on level l or a higher one: these come at every m_l-th call, m_l the smallest of n_l and those above it. By
level, with failures at a rate r_l, an hour loses

    C_l / (n_l W)                           saving, and training that is slower meanwhile
    r_l m_l W / 2                           work done again: half an interval for each failure
    r_l D_l                                 work done again: until a checkpoint is complete, the one before is used
    r_l R_l                                 coming back

hours. That is all if failures are rare. Otherwise more failures strike while work is done again, and everything after
the first line takes

    exp(sum r_l (D_l + R_l)) (exp(s W) - 1) / (s W)    times as long, with s = sum r_l m_l

which is the same to first order, exact for one level (J. T. Daly, Future Generation Computer Systems 22, 2006, equation
20), and for more takes a failure that goes back m calls for m failures that go back one. With c = sum C_l / n_l the
best period solves W = c + (1 - exp(-s W)) / s; to first order it is sqrt(2 c / s) (J. W. Young, Comm. ACM 17(9), 1974).

Not modelled: a failure also interrupts background writes. If these take about as long as the time between failures,
more is lost than this says, and higher levels are best written a little more often.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from types import MappingProxyType
from typing import NamedTuple

from deeppart.errors import ConfigError
from deeppart.model import show_seconds, show_share

#: The largest share of the time that a job spends writing to a shared file system, unless it has a
#: ``flush_bandwidth``, which is the limit then. An assumption: a flush slows other users more than training.
FLUSH_SHARE = 0.1
#: Shortest time between calls.
LEAST_PERIOD_S = 1e-3
#: A level that is best left out is still written at every so many-th call; other levels more often.
MOST_EVERY = 10_000
#: The numbers of a :class:`LevelCost`.
COST_FIELDS = ("cost_s", "latency_s", "busy_s", "restart_s", "failures_per_s")
#: Smaller parts of the waste are not shown.
_LEAST_SHOWN = 1e-5
#: Relative precision of a period: the loss is flat near the optimum.
_CLOSE = 1e-4


@dataclass(frozen=True, slots=True)
class LevelCost:
    """The cost of a level, and the rate of the failures that need it.

    Attributes:
        name: name of the level.
        cost_s: additional training time for writing it once, beyond that of the cheaper levels: blocked or slowed down.
        latency_s: from the beginning of the call until it is complete. If less than the cost of the call, such as 0, it
            is complete at the end of the call.
        busy_s: background time of one checkpoint of this level, during which the next cannot begin.
        restart_s: from a failure that needs it until training continues from it.
        failures_per_s: rate of the failures that need it.

    Example:
        >>> import deeppart
        >>> print(deeppart.types.LevelCost("local", 0.2, latency_s=1.5, restart_s=3, failures_per_s=1 / 86400))
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
    """The time that is not training, as shares of the whole, which add up to ``total``.

    Attributes:
        cost: writing checkpoints.
        rework: repeating lost work.
        restart: restarting.

    Example:
        >>> import deeppart
        >>> print(deeppart.types.Waste(cost=0.005, rework=0.006, restart=0.001))
        1.2 % of the time: 0.5 % saving, 0.6 % done again, 0.1 % coming back
    """

    cost: float
    rework: float
    restart: float

    @property
    def total(self) -> float:
        """Share of the time that is not new training; 1 if there is no progress."""
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
        every: level -> every how many calls it is written.
        waste: the expected waste.

    Example:
        >>> import deeppart
        >>> waste = deeppart.types.Waste(0.005, 0.006, 0.001)
        >>> cadence = deeppart.types.Cadence(20.0, {"local": 1, "persistent": 15}, waste)
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


def cost_per_call_s(levels: Sequence[LevelCost], every: Sequence[int]) -> float:
    """The average cost of a call for training."""
    return sum(level.cost_s / n for level, n in zip(levels, every, strict=True))


def late_s(levels: Sequence[LevelCost], every: Sequence[int]) -> list[float]:
    """For each level the time from the end of a call that writes it or a higher one until it is complete: D_l above.

    A latency counts from the beginning of the call, and the cost of the call is in the period that ends with it.
    """
    found = []
    for place, (level, n) in enumerate(zip(levels, every, strict=True)):
        call_s = level.cost_s + sum(
            lower.cost_s * min(1.0, n / m) for lower, m in zip(levels[:place], every[:place], strict=True)
        )
        found.append(max(0.0, level.latency_s - call_s))
    back = _back(every)
    for place in reversed(range(len(every) - 1)):  # a call that writes both is complete when either is
        if back[place + 1] == back[place]:
            found[place] = min(found[place : place + 2]) if every[place] == back[place] else found[place + 1]
    return found


def _back(every: Sequence[int]) -> list[int]:
    """For each level the number of calls between two checkpoints of it or of a higher level: m_l above."""
    return list(accumulate(reversed(every), min))[::-1]


class _Rates(NamedTuple):
    """Rates of a cadence that do not depend on its period: c, s, sum r_l D_l and sum r_l R_l of the model above."""

    cost_s: float
    back: float
    late: float
    restart: float

    def log_factor(self, period_s: float) -> float:
        """The logarithm of the factor by which failures prolong the work."""
        y = self.back * period_s
        return self.late + self.restart + (y + math.log(-math.expm1(-y) / y) if y else 0.0)

    def log_taken(self, period_s: float) -> float:
        """The logarithm of the training time relative to that without checkpoints and failures."""
        if period_s <= self.cost_s:
            return math.inf
        return self.log_factor(period_s) - math.log1p(-self.cost_s / period_s)

    def best_period_s(self) -> float:
        """The root of the model's equation, by Newton's method from above, where it is convex."""
        training_s = 1 / self.back
        for _ in range(60):
            strikes = -math.expm1(-self.back * (training_s + self.cost_s))
            step = (training_s - strikes / self.back) / strikes if strikes else 0.0
            training_s -= step
            if step <= _CLOSE * training_s:
                break
        return training_s + self.cost_s


def _rates(levels: Sequence[LevelCost], every: Sequence[int]) -> _Rates:
    failures = [level.failures_per_s for level in levels]
    return _Rates(
        cost_per_call_s(levels, every),
        sum(rate * m for rate, m in zip(failures, _back(every), strict=True)),
        sum(rate * late for rate, late in zip(failures, late_s(levels, every), strict=True)),
        sum(level.failures_per_s * level.restart_s for level in levels),
    )


def waste(levels: Sequence[LevelCost], period_s: float, every: Sequence[int]) -> Waste:
    """The waste of a cadence, as shares of the whole time, by the model above."""
    rates = _rates(levels, every)
    if rates.cost_s >= period_s:
        return Waste(1.0, 0.0, 0.0)
    share = math.exp(-rates.log_factor(period_s))  # of the time, without repeated work
    back = math.exp(-rates.restart)
    return Waste(share * rates.cost_s / period_s, max(0.0, back - share), 1 - back)


def best(levels: Sequence[LevelCost], least_period_s: float = 0.0) -> Cadence:
    """The cadence with the least waste of those whose multiples divide each other; of equal ones the simplest."""
    if not any(level.failures_per_s for level in levels):
        raise ConfigError(
            "there is no best cadence without failures",
            expected="levels, one of them at least with a failure rate above 0",
            found=f"{len(levels)} levels without any",
            where="deeppart.plan.interval.best",
        )
    needed = max(place for place, level in enumerate(levels) if level.failures_per_s)
    found = []
    for others in product((True, False), repeat=len(levels) - 1):
        kept = (True, *others)
        if sum(kept[needed:]) == 1:  # one level is enough for failures that need the highest
            found.append(_Search(levels, kept, least_period_s).best())
    return min(found, key=lambda each: (float(f"{each.waste.total:.5g}"), sum(each.every.values()), each.period_s))


class _Search:
    """Cadences without some levels, as ratios: after how many calls to a level the next one is due.

    The loss is convex in the logarithms of the ratios, except for rounding, so descent finds the minimum.
    """

    def __init__(self, levels: Sequence[LevelCost], kept: Sequence[bool], least_period_s: float) -> None:
        self._levels, self._kept, self._least_period_s = levels, kept, least_period_s
        self._known: dict[tuple[int, ...], tuple[float, float]] = {}

    def best(self) -> Cadence:
        """The cadence with no better neighbour."""
        at = (1,) * (sum(self._kept) - 1)
        while True:
            nearby = min(_around(at), key=self._taken_and_period, default=at)
            if self._taken_and_period(nearby)[0] >= self._taken_and_period(at)[0]:
                break
            at = nearby
        every, period_s = self._every(at), self._taken_and_period(at)[1]
        names = {level.name: n for level, n in zip(self._levels, every, strict=True)}
        return Cadence(period_s, MappingProxyType(names), waste(self._levels, period_s, every))

    def _every(self, ratios: tuple[int, ...]) -> tuple[int, ...]:
        multiples = accumulate(ratios, int.__mul__, initial=1)
        return tuple(next(multiples) if keep else MOST_EVERY for keep in self._kept)

    def _taken_and_period(self, ratios: tuple[int, ...]) -> tuple[float, float]:
        if ratios not in self._known:
            every = self._every(ratios)
            rates = _rates(self._levels, every)
            busy_s = sum(level.busy_s / n for level, n in zip(self._levels, every, strict=True))
            period_s = max(rates.best_period_s(), busy_s, self._least_period_s, LEAST_PERIOD_S)
            self._known[ratios] = rates.log_taken(period_s), period_s
        return self._known[ratios]


def _around(ratios: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Neighbours with one other ratio; the higher levels follow, or stay nearly unchanged."""
    for place, ratio in enumerate(ratios):
        below, above = ratios[:place], ratios[place + 1 :]
        for other in {ratio - 1, ratio + 1, round(ratio * 0.8), round(ratio * 1.25), 2 * ratio} - {0, ratio}:
            following = {above, (max(1, round(ratio * above[0] / other)), *above[1:])} if above else {above}
            for higher in following:
                if math.prod(found := (*below, other, *higher)) < MOST_EVERY:
                    yield found
