"""Many runs of one campaign: means, with confidence intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from .result import BUCKETS, RunResult


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: of all.
        low, high: 95 % confidence interval of the mean (Student's t); equal to it with one seed.
        least, most: of all.
    """

    mean: float
    low: float
    high: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A campaign.

    Attributes:
        seeds: how many runs.
        efficiency: useful training / wall time.
        shares: how the wall time is spent, as shares of it; training is split into useful, lost and slowed.
        failures: class -> how many.
        recoveries: costliest level that was needed -> how many.
        checkpoints: level -> how many.
        nbytes: level -> bytes.
        grown: how often an elastic job was stopped to take nodes in that were back.
    """

    seeds: int
    efficiency: Estimate
    shares: dict[str, Estimate]
    failures: dict[str, Estimate]
    recoveries: dict[str, Estimate]
    checkpoints: dict[str, Estimate]
    nbytes: dict[str, Estimate]
    grown: Estimate


def summarize(runs: Sequence[RunResult]) -> Summary:
    """Means and intervals of at least one run."""
    wall_s = runs[0].wall_s
    shares = {
        "useful": estimate([run.useful_s / wall_s for run in runs]),
        "lost": estimate([run.lost_s / wall_s for run in runs]),
        "slowed": estimate([run.slowed_s / wall_s for run in runs]),
    }
    for bucket in BUCKETS[1:]:
        shares[bucket] = estimate([run.buckets[bucket] / wall_s for run in runs])

    def counts(of: Callable[[RunResult], dict[str, int]]) -> dict[str, Estimate]:
        names = sorted({name for run in runs for name in of(run)})
        return {name: estimate([float(of(run).get(name, 0)) for run in runs]) for name in names}

    return Summary(
        seeds=len(runs),
        efficiency=shares["useful"],
        shares=shares,
        failures=counts(lambda run: run.failures),
        recoveries=counts(lambda run: run.recoveries),
        checkpoints=counts(lambda run: run.checkpoints),
        nbytes=counts(lambda run: run.nbytes),
        grown=estimate([float(run.grown) for run in runs]),
    )


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of some values and how sure it is."""
    mean = fmean(values)
    half = 0.0
    if len(values) > 1:
        half = student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, min(values), max(values))


def show_number(value: float) -> str:
    """A count, or a mean of counts, as people write it."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def student(degrees: int) -> float:
    """The 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit  # a tenth of a second that other commands need not wait

    return float(stdtrit(degrees, 0.975))
