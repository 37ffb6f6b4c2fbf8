"""Chooses the levels, cadence, redundancy and compression that waste the least time.

Candidates are compared by the model of :mod:`deeppart.plan.interval`, with stage times from
:mod:`deeppart_simulator.timing.stages` and survival by the restart planner. Each is tried with its best cadence, and
with cadences that write less often.

A choice is judged by four criteria: the training time that it loses (writing, repeating lost work, and restarting more
slowly than the fastest choice), the bytes it writes to the shared file system, those it writes to the nodes' drives,
and its complexity. It is on the *front* if no other choice is as good in all four.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deeppart.errors import ConfigError
from deeppart.model import REDUNDANT_LEVELS, Level, show_seconds, show_share
from deeppart.plan.interval import MOST_EVERY, Cadence, LevelCost, Waste, best, waste

from ..budget import Space, space_of
from ..campaign.costs import (
    AT_LEAST_S,
    Survival,
    cadence_of,
    level_costs,
    often_enough,
    restored_s,
    survival,
    training_s,
)
from ..campaign.failures import Scheduling, need_failures, new_turn_s
from ..campaign.plan import Planned, SizedJob
from ..machine.record import DAY_S
from ..timing.stages import Job, Protection

# --- constraints ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """The user's constraints on levels and compression; None for a free choice."""

    local: bool | None = None  # node-local storage, on which partner and parity depend
    partner: bool | None = None  # copies on another node
    parity: tuple[int, int] | None = None  # (nodes of a group, how many of them may be lost)
    compression: str | None = None  # "none", "tensor" or "auto"

    def protection(self) -> Protection:
        """The levels with the defaults for free choices: local storage, copies, no parity."""
        local = self.local is not False
        group, tolerate = self.parity or (0, 1)
        return Protection(local, local and self.partner is not False, group, tolerate)

    def among(self, candidates: Iterable[Job]) -> list[Job]:
        """The distinct candidates that satisfy the constraints, with the given parity group and compression."""
        found = {(job.protection, job.compression): job for job in map(self._given, candidates)}
        return [job for job in found.values() if self._fits(job.protection)]

    def kept(self, costs: Sequence[LevelCost], cadence: Cadence) -> Cadence:
        """A cadence with all required levels: one that was left out is written as often as the next higher level."""
        given = {Level.PARTNER} if self.partner else set()
        given |= {Level.PARITY} if self.parity else set()
        every, above = dict(cadence.every), 1
        for cost in reversed(costs):
            if every[cost.name] >= MOST_EVERY and cost.name in given:
                every[cost.name] = above
            above = every[cost.name] if every[cost.name] < MOST_EVERY else above
        if every == cadence.every:
            return cadence
        counts = list(every.values())
        busy_s = sum(cost.busy_s / count for cost, count in zip(costs, counts, strict=True))
        period_s = max(cadence.period_s, busy_s)
        return cadence_of(costs, period_s, every)

    def _given(self, job: Job) -> Job:
        """A candidate with the given parity group and compression."""
        protection = job.protection
        if self.parity and protection.local:
            group, tolerate = self.parity
            protection = replace(protection, partner=bool(self.partner), parity_group=group, parity_tolerate=tolerate)
        return replace(job, protection=protection, compression=self.compression or job.compression)

    def _fits(self, protection: Protection) -> bool:
        return (
            self.local in (None, protection.local)
            and self.partner in (None, protection.partner)
            and (self.parity is None or protection.parity_group == self.parity[0])
        )


#: No constraints.
ANYTHING = Wanted()


# --- candidates and advice --------------------------------------------------------------------------------------------


#: Candidates for parity groups: (nodes, how many of them may be lost).
PARITIES = ((4, 1), (8, 1), (8, 2), (16, 1), (16, 2))
#: Factors by which candidates call less often, and flush less often, than the best cadence.
_LESS_OFTEN = (1, 2, 4, 8, 16)
#: Factors on the mean times between failures in the table of sensitivity.
FACTORS = (0.25, 0.5, 2.0, 4.0)
#: A job that loses this fraction of its time makes no progress.
HOPELESS = 0.999
UNDISTURBED = Scheduling()


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to checkpoint."""

    job: Job  # with levels, compression and capture
    costs: tuple[LevelCost, ...]  # per level
    survival: Survival
    cadence: Cadence  # the best one, or one that writes less often
    world: SizedJob = field(compare=False)  # the job on all of its nodes
    #: length of a training step if the script calls at every step; 0 if it calls only when a checkpoint is due
    step_s: float = 0.0
    leaving: float = 0.0  # fraction of the time that preemptions with enough notice take

    @property
    def blocked_s(self) -> float:
        """Seconds for which a call blocks."""
        return self.world.blocked_s

    @property
    def complete_s(self) -> dict[str, float]:
        """Level -> seconds until it is complete."""
        return self.world.times.complete()

    @property
    def idle(self) -> float:
        """Fraction of the time that calls take at which nothing is due."""
        return self._idle_after(self.cadence.waste)

    @property
    def waste(self) -> Waste:
        """The wasted fractions of the time."""
        return self.of_all(self.cadence.waste)

    def of_all(self, expected: Waste) -> Waste:
        """Add calls that save nothing, and preemptions with enough notice, to a cadence's expected waste."""
        stays, idle = 1 - self.leaving, self._idle_after(expected)
        return Waste(stays * expected.cost + idle, stays * expected.rework, stays * expected.restart + self.leaving)

    def _idle_after(self, expected: Waste) -> float:
        """Fraction of the time for calls that save nothing: like others they flatten and compare the state."""
        calls = steps_between(self.costs, self.cadence, self.step_s) - 1 if self.step_s else 0
        idle_s = calls * self.world.times.plan
        trains = (1 - self.leaving) * (1 - expected.total)
        return trains * idle_s / (training_s(self.costs, self.cadence) + idle_s)

    @property
    def work_s(self) -> float:
        """Mean training time lost by a failure."""
        return self.cadence.waste.rework / sum(cost.failures_per_s for cost in self.costs)

    @property
    def back_s(self) -> float:
        """Mean time from a failure until training continues, including further failures in between."""
        return self.cadence.waste.restart / sum(cost.failures_per_s for cost in self.costs)

    @property
    def space(self) -> Space:
        """The space that the levels need."""
        return space_of(self.world, self.cadence.every)

    @property
    def node_daily_bytes(self) -> float:
        """Bytes written to each node's storage per day, which wear its drives."""
        on_nodes = [level for level in self.cadence.every if level != Level.PERSISTENT]
        return sum(map(self._daily_bytes, on_nodes)) / self.job.nodes

    @property
    def drained_daily_bytes(self) -> float:
        """Bytes written to the file system per day."""
        return self._daily_bytes(Level.PERSISTENT) if Level.PERSISTENT in self.cadence.every else 0.0

    def _daily_bytes(self, level: str) -> float:
        return self.world.level_bytes[level] * DAY_S / self.cadence.interval_s(level)

    @property
    def simplicity(self) -> tuple[int, ...]:
        """Sort key, simplest first: by levels, then parity group, then compression."""
        protection = self.job.protection
        redundancy = 2 if protection.parity_group else 1 if protection.partner else 0
        return (redundancy, protection.parity_tolerate, protection.parity_group, int(self.job.compression != "none"))


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The waste at another failure rate than assumed."""

    factor: float  # on the mean times between failures
    kept: float  # fraction of the time wasted with the advised cadence
    adapted: float  # the same with the best cadence for this rate
    period_s: float  # of the best cadence


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice, with its reasons."""

    chosen: Choice  # the advised one of the front
    choices: tuple[Choice, ...]  # every candidate with its best cadence, the least waste first
    front: tuple[Choice, ...]  # by :func:`front_of`
    sensitivity: tuple[Sensitivity, ...]  # to the failure rate
    #: candidate -> why there is no room for it
    too_large: Mapping[str, str] = field(default_factory=dict)
    scheduling: Scheduling = UNDISTURBED  # the preemptions that were considered


def advise(
    job: Job,
    step_s: float = 0.0,
    wanted: Wanted = ANYTHING,
    scheduling: Scheduling = UNDISTURBED,
) -> Advice:
    """Compare all candidates for a job, and choose one."""
    if math.isinf(scheduling.preemption_s):
        need_failures(job)
    choices, less_often, too_large = list[Choice](), list[Choice](), dict[str, str]()
    for candidate in wanted.among(_candidates(job)):
        choice = _judge(candidate, step_s, wanted, scheduling)
        if choice is None:
            continue
        fitting = [each for each in (choice, *_less_often(choice, wanted)) if not each.space.too_large]
        if fitting:
            choices.append(min(fitting, key=lambda each: each.waste.total))
            less_often += fitting
        else:
            too_large[describe(candidate)] = "; ".join(choice.space.too_large)
    if too_large and not choices:
        first, why = next(iter(too_large.items()))
        raise ConfigError(
            "there is no room for what would be kept, whatever the levels",
            expected="room for the steps that are kept at each level while another one is written",
            found=f"with {first}, {why}",
            where=job.machine.name,
            todo="compress, take more room, or keep fewer steps: `keep` in docs/configuration.md",
        )
    if not choices:
        raise ConfigError(
            "nothing survives all failures that happen",
            expected="a level for every class of failure",
            found="failures that lose all nodes, and no persistent level",
            where=job.machine.name,
        )
    choices.sort(key=lambda choice: (choice.waste.total, choice.simplicity))
    if choices[0].waste.total >= HOPELESS:
        raise _hopeless(choices[0])
    # If nearly everything is lost, even AS_GOOD would be too generous.
    front = front_of([each for each in (*choices, *less_often) if each.waste.total < HOPELESS])
    chosen = advised(front)
    sensitivity = tuple(_sensitivity(chosen))
    return Advice(chosen, tuple(choices), front, sensitivity, too_large, scheduling)


def _hopeless(least: Choice) -> ConfigError:
    waste, rate = least.waste, sum(cost.failures_per_s for cost in least.costs)
    parts = {"coming back": waste.restart, "doing again what was lost": waste.rework, "writing": waste.cost}
    largest = max(parts, key=parts.__getitem__)
    return ConfigError(
        "this machine cannot train this job so: nothing gets done, whatever the levels and the cadence",
        expected=f"more than {show_share(1 - HOPELESS)} of the time for new training",
        found=f"a failure every {show_seconds(1 / rate)}; a call blocks for {show_seconds(least.blocked_s)}; with "
        f"{describe(least.job)}, which loses least, {show_share(parts[largest])} of the time goes into {largest}",
        where=f"{least.job.machine.name}, {least.job.ranks:,} ranks on {least.job.nodes:,} nodes",
        todo="take fewer nodes, nodes that fail more rarely, or a faster way back (--restart-mode)",
    )


def shown(advice: Advice, most: int = 12) -> list[Choice]:
    """The advised choice, and up to ``most`` others of the front, evenly spaced from the first to the last."""
    places = {round(place * (len(advice.front) - 1) / (most - 1)) for place in range(most)}
    others = (choice for place, choice in enumerate(advice.front) if place in places)
    return [advice.chosen, *(choice for choice in others if choice is not advice.chosen)]


def describe(job: Job) -> str:
    """Describe levels and compression briefly."""
    protection = job.protection
    words: list[str] = [Level.LOCAL] if protection.local else []
    words += [Level.PARTNER] if protection.partner else []
    if protection.parity_group:
        words.append(f"parity {protection.parity_group}/{protection.parity_tolerate}")
    words += [Level.PERSISTENT] if protection.persistent else []
    return " + ".join(words) + ("" if job.compression == "none" else ", compressed")


def _candidates(job: Job) -> Iterator[Job]:
    nodes = job.nodes
    protections = [Protection(local=False, partner=False), Protection(partner=False)]
    if nodes > 1:
        protections.append(Protection())
    protections += [
        Protection(partner=False, parity_group=group, parity_tolerate=tolerate)
        for group, tolerate in PARITIES
        if group <= nodes
    ]
    compressions = ("none", "tensor") if job.machine.codecs else ("none",)
    for protection in protections:
        for compression in compressions:
            yield replace(job, protection=protection, compression=compression)


def _judge(job: Job, step_s: float, wanted: Wanted, scheduling: Scheduling) -> Choice | None:
    planned = Planned(job)
    found = survival(planned)
    if found.unprotected:
        return None
    costs, leaving = _preempted(planned, level_costs(planned, found), scheduling)
    cadence = _cadence(costs, step_s, step_s, wanted)
    if any(cadence.every.get(level, 0) >= MOST_EVERY for level in REDUNDANT_LEVELS):
        return None  # the level is best left out, and the job without it is another candidate
    return Choice(job, costs, found, cadence, planned.on(planned.nodes), step_s, leaving)


def _preempted(
    planned: Planned, costs: Sequence[LevelCost], scheduling: Scheduling
) -> tuple[tuple[LevelCost, ...], float]:
    """The costs with preemptions whose notice is too short; the fraction of the time that other preemptions take."""
    if math.isinf(scheduling.preemption_s):
        return tuple(costs), 0.0
    *others, last = costs
    leaving_s = max(planned.on(planned.nodes).times.complete().values())
    back_s = new_turn_s(planned.job.machine.restart, planned.job.ranks) + restored_s(planned, last.name)
    if scheduling.notice_s >= leaving_s:
        return tuple(costs), (leaving_s + back_s) / (scheduling.preemption_s + leaving_s + back_s)
    rate = last.failures_per_s + 1 / scheduling.preemption_s
    restart_s = (last.failures_per_s * last.restart_s + back_s / scheduling.preemption_s) / rate
    return (*others, replace(last, failures_per_s=rate, restart_s=restart_s)), 0.0


def _cadence(costs: Sequence[LevelCost], least_period_s: float, step_s: float, wanted: Wanted) -> Cadence:
    """The best cadence with the required levels, in whole steps."""
    found = often_enough(costs, best(costs, least_period_s))
    return in_steps(costs, wanted.kept(costs, found), step_s)


def _less_often(choice: Choice, wanted: Wanted) -> Iterator[Choice]:
    """The same choice with cadences that write less often."""
    costs, best_one, step_s = choice.costs, choice.cadence, choice.step_s
    rarest_s = max(AT_LEAST_S, best_one.interval_s(Level.PERSISTENT))
    fewer_flushes = _LESS_OFTEN if len(costs) > 1 else (1,)  # a single level is written at every call
    for calls in _LESS_OFTEN:
        cadence = best_one if calls == 1 else _cadence(costs, best_one.period_s * calls, step_s, wanted)
        if any(cadence.every.get(level, 0) >= MOST_EVERY for level in REDUNDANT_LEVELS):
            continue
        for times in fewer_flushes:
            every = {**cadence.every, Level.PERSISTENT: cadence.every[Level.PERSISTENT] * times}
            if calls * times > 1 and every[Level.PERSISTENT] * cadence.period_s <= rarest_s:
                yield replace(choice, cadence=in_steps(costs, cadence_of(costs, cadence.period_s, every), step_s))


def _sensitivity(choice: Choice) -> Iterator[Sensitivity]:
    every = [choice.cadence.every[cost.name] for cost in choice.costs]
    for factor in FACTORS:
        costs = [replace(cost, failures_per_s=cost.failures_per_s / factor) for cost in choice.costs]
        adapted = best(costs, choice.step_s)
        kept = waste(costs, choice.cadence.period_s, every)
        yield Sensitivity(factor, choice.of_all(kept).total, choice.of_all(adapted.waste).total, adapted.period_s)


# --- the front --------------------------------------------------------------------------------------------------------


#: A loss counts as the least if it exceeds it by no more than this fraction of it, or this fraction of all time: the
#: numbers are not more accurate. But never by more than this fraction of the useful time.
AS_GOOD, AS_GOOD_OF_ALL, AS_GOOD_OF_USEFUL = 0.05, 5e-4, 0.01
#: Up to this many times the fewest bytes count as the fewest.
_AS_FEW = 2.0
#: Choices that lose more than this many times the least are dropped, however little they write.
_WORTH_A_LOOK = 10.0
#: Relative differences below this are ignored.
_SAME = 0.02


def loss_of(choice: Choice, least_restart: float) -> float:
    """The fraction of the time that another choice could save."""
    return choice.waste.total - least_restart


def least_restart(choices: Sequence[Choice]) -> float:
    """The fraction of the time for restarts that every choice loses."""
    return min(choice.waste.restart for choice in choices)


def _fewest(choices: Sequence[Choice]) -> tuple[float, float]:
    """(the least loss, the part of it that every choice loses in idle calls, which must not widen tolerances)."""
    least = least_restart(choices)
    return min(loss_of(choice, least) for choice in choices), min(choice.idle for choice in choices)


def front_of(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """The choices to which no other one is equal or better in all criteria, least waste first; of equal ones the
    simplest.
    """
    kept: list[Choice] = []
    least = least_restart(choices)
    fewest, idle = _fewest(choices)
    most = max(_WORTH_A_LOOK * (fewest - idle), AS_GOOD_OF_ALL) + idle
    for choice in sorted(choices, key=lambda each: (each.waste.total, each.simplicity, each.drained_daily_bytes)):
        if loss_of(choice, least) <= most and not any(_as_good(other, choice) for other in kept):
            kept.append(choice)
    return tuple(kept)


def _as_good(one: Choice, other: Choice) -> bool:
    return (
        one.drained_daily_bytes <= other.drained_daily_bytes * (1 + _SAME)
        and one.node_daily_bytes <= other.node_daily_bytes * (1 + _SAME)
        and one.simplicity <= other.simplicity
    )


def advised(front: Sequence[Choice]) -> Choice:
    """Of the choices with nearly the least loss, those that write least to the file system, then to drives; of these,
    the simplest.
    """
    least, (fewest, idle) = least_restart(front), _fewest(front)
    useful = 1 - min(choice.waste.total for choice in front)
    most = fewest + min(max(AS_GOOD * (fewest - idle), AS_GOOD_OF_ALL), AS_GOOD_OF_USEFUL * useful)
    left = [choice for choice in front if loss_of(choice, least) <= most]
    drained = min(choice.drained_daily_bytes for choice in left)
    left = [choice for choice in left if choice.drained_daily_bytes <= _AS_FEW * drained]
    worn = min(choice.node_daily_bytes for choice in left)
    left = [choice for choice in left if choice.node_daily_bytes <= _AS_FEW * worn]
    return min(left, key=lambda choice: (choice.simplicity, choice.waste.total))


# --- whole training steps ---------------------------------------------------------------------------------------------


#: Tolerance for rounding, as a fraction of a step.
_ROUNDING = 1e-9


def in_steps(costs: Sequence[LevelCost], cadence: Cadence, step_s: float) -> Cadence:
    """The better of the two nearest cadences whose calls are a whole number of training steps apart."""
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
