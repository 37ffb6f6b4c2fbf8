"""The choice of levels, cadence, redundancy and compression that wastes least, with the reasons.

Candidates are compared by the model of :mod:`deeppart.plan.interval`, with stage times from
:mod:`deeppart_simulator.timing.stages` and what survives from the restart planner. Of the candidates that waste at most
a twentieth more than the best, the simplest is advised: the machine's numbers are not known more precisely than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from deeppart.errors import ConfigError
from deeppart.model import REDUNDANT_LEVELS, Level
from deeppart.plan.interval import MOST_EVERY, Cadence, LevelCost, best, waste

from ..campaign.costs import Survival, level_costs, survival
from ..campaign.plan import Planned
from ..timing.stages import Job, Protection
from .steps import in_steps
from .wanted import ANYTHING, Wanted

#: Parity groups that are tried: (nodes, of them may be lost).
PARITIES = ((4, 1), (8, 1), (8, 2), (16, 1), (16, 2))
#: Wasting so much more than the least is as good, and may be advised for being simpler.
_AS_GOOD = 0.05
_DAY_S = 86_400.0
#: Factors on the mean times between failures that the sensitivity is shown for.
FACTORS = (0.25, 0.5, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to checkpoint.

    Attributes:
        job: with the levels, the compression and the capture.
        costs: per level.
        survival: which failure needs which level.
        cadence: the best one.
        blocked_s: of each call.
        complete_s: level -> until it is complete.
        node_bytes: on each node's storage, in bytes, for as many steps as are kept while another is written.
        node_daily_bytes: that are written there per day: what wears a drive.
        drained_daily_bytes: that the job writes to the file system per day.
    """

    job: Job
    costs: tuple[LevelCost, ...]
    survival: Survival
    cadence: Cadence
    blocked_s: float
    complete_s: dict[str, float]
    node_bytes: float
    node_daily_bytes: float
    drained_daily_bytes: float

    @property
    def simplicity(self) -> tuple[int, ...]:
        """Less is simpler: levels, then parity's group, then compression."""
        protection = self.job.protection
        redundancy = 2 if protection.parity_group else 1 if protection.partner else 0
        return (redundancy, protection.parity_tolerate, protection.parity_group, int(self.job.compression != "none"))


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """If failures came at another rate than assumed.

    Attributes:
        factor: on the mean times between failures.
        kept: share of time wasted with the advised cadence.
        adapted: with the best one for that rate.
        period_s: of the latter.
    """

    factor: float
    kept: float
    adapted: float
    period_s: float


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice, with its reasons.

    Attributes:
        chosen: the advice.
        choices: all that were compared, the least waste first.
        sensitivity: to the failure rate.
        by_ranks_per_node: ranks per node -> (blocked, complete on the nodes) in seconds, of the same number of ranks.
    """

    chosen: Choice
    choices: tuple[Choice, ...]
    sensitivity: tuple[Sensitivity, ...]
    by_ranks_per_node: dict[int, tuple[float, float]]


def advise(
    job: Job,
    step_s: float = 0.0,
    progress: Callable[[str], None] = lambda text: None,
    wanted: Wanted = ANYTHING,
) -> Advice:
    """Compare all candidates for a job.

    Args:
        job: its levels and compression are what is looked for; the rest is kept.
        step_s: length of a training step: calls are whole steps apart.
        wanted: what is given of its levels and compression.

    Raises:
        ConfigError: the machine has no failures, or none of the candidates survives all of them.
    """
    choices = []
    for candidate in wanted.among(_candidates(job)):
        progress(describe(candidate))
        choice = _judge(candidate, step_s, wanted)
        if choice is not None:
            choices.append(choice)
    if not choices:
        raise ConfigError(
            "nothing survives all failures that happen",
            expected="a level for every class of failure",
            found="failures that lose all nodes, and no persistent level",
            where=job.machine.name,
        )
    choices.sort(key=lambda choice: (choice.cadence.waste.total, choice.simplicity))
    least = choices[0].cadence.waste.total
    as_good = [choice for choice in choices if choice.cadence.waste.total <= least * (1 + _AS_GOOD)]
    chosen = min(as_good, key=lambda choice: (choice.simplicity, choice.cadence.waste.total))
    return Advice(chosen, tuple(choices), tuple(_sensitivity(chosen, step_s)), _by_ranks_per_node(chosen.job))


def describe(job: Job) -> str:
    """The levels and the compression in a few words."""
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


def _judge(job: Job, step_s: float, wanted: Wanted) -> Choice | None:
    planned = Planned(job)
    found = survival(planned)
    if found.unprotected:
        return None
    costs = tuple(level_costs(planned, found))
    cadence = in_steps(costs, wanted.kept(costs, best(costs, step_s)), step_s)
    if any(cadence.every.get(level, 0) >= MOST_EVERY for level in REDUNDANT_LEVELS):
        return None  # best left out: the same without that level is a candidate of its own
    world = planned.on(planned.nodes)
    daily = {cost.name: world.level_bytes[cost.name] * _DAY_S / cadence.interval_s(cost.name) for cost in costs}
    on_nodes = [cost.name for cost in costs if cost.name != Level.PERSISTENT]
    return Choice(
        job,
        costs,
        found,
        cadence,
        world.times.blocked_s,
        world.times.complete(),
        node_bytes=2 * sum(world.level_bytes[name] for name in on_nodes) / planned.nodes,
        node_daily_bytes=sum(daily[name] for name in on_nodes) / planned.nodes,
        drained_daily_bytes=daily.get(Level.PERSISTENT, 0.0),
    )


def _sensitivity(choice: Choice, step_s: float) -> Iterator[Sensitivity]:
    every = [choice.cadence.every[cost.name] for cost in choice.costs]
    for factor in FACTORS:
        costs = [replace(cost, failures_per_s=cost.failures_per_s / factor) for cost in choice.costs]
        adapted = best(costs, step_s)
        kept = waste(costs, choice.cadence.period_s, every)
        yield Sensitivity(factor, kept.total, adapted.waste.total, adapted.period_s)


def _by_ranks_per_node(job: Job) -> dict[int, tuple[float, float]]:
    """The same ranks on more or fewer nodes each."""
    found = {}
    for width in sorted({1, 2, 4, 8, job.ranks_per_node, job.machine.ranks_per_node}):
        nodes = math.ceil(job.ranks / width)
        if width > job.ranks or nodes > job.machine.nodes or nodes < max(1, job.protection.parity_group):
            continue
        protection = job.protection if nodes > 1 else replace(job.protection, partner=False)
        world = Planned(replace(job, ranks_per_node=width, protection=protection)).on(nodes)
        complete = world.times.complete()
        found[width] = (world.times.blocked_s, next(iter(complete.values())))
    return found
