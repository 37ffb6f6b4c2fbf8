"""The result of one simulated run: where the time went, what failed, what was written."""

from __future__ import annotations

from dataclasses import dataclass, field

#: Where the time of the job goes.
BUCKETS = ("training", "blocked", "waiting", "down", "short of nodes", "restoring", "leaving", "queued")


@dataclass(slots=True)
class RunResult:
    """The figures of one simulated run. Times are in seconds.

    Attributes:
        seed: of its random numbers.
        wall_s: how long the run was.
        useful_s: training that was not lost, as seconds of the whole job.
        lost_s: training that had to be done again.
        buckets: how the wall time was spent; adds up to ``wall_s``.
        slowed_s: training time lost because checkpoints worked in the background.
        failures: class -> how many struck the job.
        recoveries: costliest level that was needed -> how often; "none" for a start from nothing.
        checkpoints: level -> how many were completed there.
        nbytes: level -> bytes written there.
        least_nodes: fewest nodes the job ran on.
        grown: how often it was stopped to go on with more nodes.
        ends: what the scheduler ended it for, "preemption" or "time limit" -> how often.
        in_time: how often it had saved everything by then.
    """

    seed: int
    wall_s: float
    useful_s: float = 0.0
    lost_s: float = 0.0
    slowed_s: float = 0.0
    buckets: dict[str, float] = field(default_factory=lambda: dict.fromkeys(BUCKETS, 0.0))
    failures: dict[str, int] = field(default_factory=dict)
    recoveries: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[str, int] = field(default_factory=dict)
    nbytes: dict[str, int] = field(default_factory=dict)
    least_nodes: int = 0
    grown: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    in_time: int = 0

    @property
    def efficiency(self) -> float:
        """Useful training / wall time."""
        return self.useful_s / self.wall_s
