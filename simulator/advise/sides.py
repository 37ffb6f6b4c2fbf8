"""Two or more jobs beside each other: what a checkpoint of each takes, and what is advised for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..timing.stages import Job, times_of
from .choose import Choice, advise
from .wanted import ANYTHING, Wanted


@dataclass(frozen=True, slots=True)
class Side:
    """One of the jobs that are compared.

    Attributes:
        label: what sets it apart.
        job: with the levels and the compression that are advised; as it was given where nothing fails.
        choice: what is advised; None where nothing fails.
        blocked_s: of each call.
        complete_s: level -> until it is complete.
    """

    label: str
    job: Job
    choice: Choice | None
    blocked_s: float
    complete_s: dict[str, float]


def side_of(
    label: str,
    job: Job,
    wanted: Wanted = ANYTHING,
    step_s: float = 0.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Side:
    """A job with what is advised for it."""
    if not has_failures(job):
        times = times_of(job, job.shares())
        return Side(label, job, None, times.blocked_s, times.complete())
    chosen = advise(job, step_s, progress, wanted).chosen
    return Side(label, chosen.job, chosen, chosen.blocked_s, chosen.complete_s)


def has_failures(job: Job) -> bool:
    """Whether the job's machine fails at all."""
    failures = job.machine.failures
    of_groups = [kind.mtbf for kind in failures.kinds.values()]
    return min(failures.process, failures.node, failures.system, *of_groups) < float("inf")


def least_restart_of(sides: Sequence[Side]) -> float:
    """The share of the time that coming back takes on the side where it takes least."""
    return min((side.choice.waste.restart for side in sides if side.choice is not None), default=0.0)
