"""Results of campaigns: the figures of one run, and means over seeds with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

#: Where the time of the job goes.
BUCKETS = ("training", "blocked", "waiting", "down", "short of nodes", "restoring", "leaving", "queued")


@dataclass(slots=True)
class RunResult:
    """The figures of one simulated run. Times are in seconds."""

    seed: int  # of its random numbers
    wall_s: float  # how long the run was
    useful_s: float = 0.0  # training that was not lost, as seconds of the whole job
    lost_s: float = 0.0  # training that had to be done again
    slowed_s: float = 0.0  # training time lost because checkpoints worked in the background
    #: how the wall time was spent; adds up to ``wall_s``
    buckets: dict[str, float] = field(default_factory=lambda: dict.fromkeys(BUCKETS, 0.0))
    failures: dict[str, int] = field(default_factory=dict)  # class -> how many struck the job
    #: costliest level that was needed -> how often; "none" for a start from nothing
    recoveries: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[str, int] = field(default_factory=dict)  # level -> how many were completed there
    nbytes: dict[str, int] = field(default_factory=dict)  # level -> bytes written there
    least_nodes: int = 0  # fewest nodes the job ran on
    grown: int = 0  # how often it was stopped to go on with more nodes
    #: what the scheduler ended it for, "preemption" or "time limit" -> how often
    ends: dict[str, int] = field(default_factory=dict)
    in_time: int = 0  # how often it had saved everything by then

    @property
    def efficiency(self) -> float:
        """Useful training / wall time."""
        return self.useful_s / self.wall_s


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds."""

    mean: float  # of all
    #: low, high: 95 % confidence interval of the mean; equal to it with one seed. Counts and bytes: Student's t, from 0
    #: up. Shares: Student's t on the logit scale (:func:`share_estimate`).
    low: float
    high: float
    least: float  # least, most: of all
    most: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A campaign."""

    seeds: int  # how many runs
    efficiency: Estimate  # useful training / wall time
    #: how the wall time is spent, as shares of it; training is split into useful, lost and slowed
    shares: dict[str, Estimate]
    failures: dict[str, Estimate]  # class -> how many
    recoveries: dict[str, Estimate]  # costliest level that was needed -> how many
    checkpoints: dict[str, Estimate]  # level -> how many
    nbytes: dict[str, Estimate]  # level -> bytes
    grown: Estimate  # how often an elastic job was stopped to take nodes in that were back
    #: "preemption", "time limit" -> how often the scheduler ended the job
    ends: dict[str, Estimate] = field(default_factory=dict)
    #: how often it had saved everything by then
    in_time: Estimate = field(default_factory=lambda: Estimate(0.0, 0.0, 0.0, 0.0, 0.0))


def summarize(runs: Sequence[RunResult]) -> Summary:
    """Means and intervals of at least one run."""
    wall_s = runs[0].wall_s
    shares = {
        "useful": share_estimate([run.useful_s / wall_s for run in runs]),
        "lost": share_estimate([run.lost_s / wall_s for run in runs]),
        "slowed": share_estimate([run.slowed_s / wall_s for run in runs]),
    }
    for bucket in BUCKETS[1:]:
        shares[bucket] = share_estimate([run.buckets[bucket] / wall_s for run in runs])

    def counts(field: str) -> dict[str, Estimate]:
        found = [getattr(run, field) for run in runs]
        names = sorted({name for each in found for name in each})
        return {name: estimate([float(each.get(name, 0)) for each in found]) for name in names}

    return Summary(
        seeds=len(runs),
        efficiency=shares["useful"],
        shares=shares,
        grown=estimate([float(run.grown) for run in runs]),
        in_time=estimate([float(run.in_time) for run in runs]),
        **{field: counts(field) for field in ("failures", "recoveries", "checkpoints", "nbytes", "ends")},
    )


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of some values, none below 0, and how sure it is: Student's t, without what is below 0."""
    mean, half = _mean_and_half(values)
    return Estimate(mean, max(0.0, mean - half), mean + half, min(values), max(values))


def share_estimate(values: Sequence[float]) -> Estimate:
    """The mean of some shares, from 0 to 1, and how sure it is: Student's t of the mean's logit, by the delta method,
    and transformed back (as `svyciprop` of T. Lumley's R package survey has it, method "logit").
    """
    values = [min(1.0, max(0.0, value)) for value in values]
    mean, half = _mean_and_half(values)
    low = high = mean
    if half > 0 and 0 < mean < 1:
        odds, factor = mean / (1 - mean), math.exp(min(_MOST_LOGIT, half / (mean * (1 - mean))))
        low, high = odds / (odds + factor), odds * factor / (1 + odds * factor)
    return Estimate(mean, min(low, mean), max(high, mean), min(values), max(values))


#: Half an interval on the logit scale is never longer: beyond, exp() has no number.
_MOST_LOGIT = 500.0


def _mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % confidence interval by Student's t."""
    # Rounding may leave the mean of equal values beside them.
    mean = min(max(fmean(values), min(values)), max(values))
    if len(values) == 1 or min(values) == max(values):
        return mean, 0.0
    return mean, student(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def show_number(value: float) -> str:
    """A count, or a mean of counts, as people write it."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def student(degrees: int) -> float:
    """The 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit  # a tenth of a second that other commands need not wait

    return float(stdtrit(degrees, 0.975))
