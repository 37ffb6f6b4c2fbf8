"""What comes of a workload: how long jobs took, and what restarts took of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .engine import JobResult


@dataclass(frozen=True)
class Outcome:
    """A workload with one policy.

    Attributes:
        policy, workload: their names.
        restart_s: of each application, by name.
        jobs: how each went.
    """

    policy: str
    workload: str
    restart_s: dict[str, float]
    jobs: Sequence[JobResult]

    @property
    def mean_s(self) -> float:
        """From submission to end, of all jobs."""
        return float(np.mean([job.completion_s for job in self.jobs]))

    @property
    def median_s(self) -> float:
        """The same, of the job in the middle."""
        return float(np.median([job.completion_s for job in self.jobs]))

    @property
    def p90_s(self) -> float:
        """Nine of ten jobs take no longer."""
        return float(np.quantile([job.completion_s for job in self.jobs], 0.9))

    @property
    def makespan_s(self) -> float:
        """Until the last one is done."""
        return max(job.finished_s for job in self.jobs)

    @property
    def restarts(self) -> float:
        """Of a job, on average."""
        return float(np.mean([job.restarts for job in self.jobs]))

    @property
    def stopped_s(self) -> float:
        """That a job spent starting, on average."""
        return float(np.mean([job.stopped_s for job in self.jobs]))


def mean_of(outcomes: Sequence[Outcome], name: str) -> float:
    """The mean of a figure over workloads."""
    return float(np.mean([getattr(outcome, name) for outcome in outcomes]))
