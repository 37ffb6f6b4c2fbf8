"""Results of campaigns: the figures of one run, and means over seeds with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

#: How the job's time is spent.
BUCKETS = ("training", "blocked", "waiting", "down", "short of nodes", "restoring", "leaving", "queued")


@dataclass(slots=True)
class RunResult:
    """The figures of one simulated run. Times are in seconds."""

    seed: int  # of the random numbers
    wall_s: float  # length of the run
    useful_s: float = 0.0  # training that was not lost, in seconds of the whole job
    lost_s: float = 0.0  # training that had to be repeated
    slowed_s: float = 0.0  # training time lost to checkpoints in the background
    #: how the wall time was spent; the sum is ``wall_s``
    buckets: dict[str, float] = field(default_factory=lambda: dict.fromkeys(BUCKETS, 0.0))
    failures: dict[str, int] = field(default_factory=dict)  # class -> number that struck the job
    #: slowest level that a restore needed -> number of restores; "none" for a start from nothing
    recoveries: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[str, int] = field(default_factory=dict)  # level -> number of completed checkpoints
    nbytes: dict[str, int] = field(default_factory=dict)  # level -> bytes written
    least_nodes: int = 0  # fewest nodes on which the job ran
    grown: int = 0  # restarts to continue with more nodes
    #: reason of the scheduler, "preemption" or "time limit" -> number of times that it ended the job
    ends: dict[str, int] = field(default_factory=dict)
    in_time: int = 0  # number of those ends before which everything was saved

    @property
    def efficiency(self) -> float:
        """Useful training / wall time."""
        return self.useful_s / self.wall_s


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds."""

    mean: float
    #: low, high: 95 % confidence interval of the mean; equal to the mean with one seed. For counts and bytes Student's
    #: t, cut at 0; for shares Student's t on the logit scale (:func:`share_estimate`).
    low: float
    high: float
    least: float  # least, most: of the seeds
    most: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of a campaign. Counts are as in :class:`RunResult`."""

    seeds: int  # number of runs
    efficiency: Estimate  # useful training / wall time
    #: shares of the wall time; training is divided into useful, lost and slowed
    shares: dict[str, Estimate]
    failures: dict[str, Estimate]
    recoveries: dict[str, Estimate]
    checkpoints: dict[str, Estimate]
    nbytes: dict[str, Estimate]
    grown: Estimate
    ends: dict[str, Estimate] = field(default_factory=dict)
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
    """The mean of values >= 0 with its confidence interval by Student's t, cut at 0."""
    mean, half = _mean_and_half(values)
    return Estimate(mean, max(0.0, mean - half), mean + half, min(values), max(values))


def share_estimate(values: Sequence[float]) -> Estimate:
    """The mean of shares from 0 to 1 with its confidence interval: Student's t on the logit of the mean by the delta
    method, transformed back (as in `svyciprop` of T. Lumley's R package survey, method "logit").
    """
    values = [min(1.0, max(0.0, value)) for value in values]
    mean, half = _mean_and_half(values)
    low = high = mean
    if half > 0 and 0 < mean < 1:
        odds, factor = mean / (1 - mean), math.exp(min(_MOST_LOGIT, half / (mean * (1 - mean))))
        low, high = odds / (odds + factor), odds * factor / (1 + odds * factor)
    return Estimate(mean, min(low, mean), max(high, mean), min(values), max(values))


#: Most half-width of an interval on the logit scale: exp() would overflow.
_MOST_LOGIT = 500.0


def _mean_and_half(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % confidence interval by Student's t."""
    # Rounding may put the mean of equal values outside of their range.
    mean = min(max(fmean(values), min(values)), max(values))
    if len(values) == 1 or min(values) == max(values):
        return mean, 0.0
    return mean, student(len(values) - 1) * stdev(values) / math.sqrt(len(values))


def show_number(value: float) -> str:
    """Format a count or a mean of counts."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def student(degrees: int) -> float:
    """The 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit  # takes 0.1 s to import

    return float(stdtrit(degrees, 0.975))
