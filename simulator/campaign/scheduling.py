"""What a scheduler does to a job: it ends it after its time, or to make room, and starts it again when its turn comes.

The job may be told some time before (``--signal`` of Slurm, the notice of a cloud). It then makes a checkpoint at all
levels, as ``checkpoint(force=True)`` does, and leaves as soon as that is complete; if the time is too short for it, it
is ended with what is complete. Afterwards it waits in a queue for other nodes, on which nothing of it is stored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

PREEMPTION, TIME_LIMIT = "preemption", "time limit"
ENDS = (PREEMPTION, TIME_LIMIT)


@dataclass(frozen=True, slots=True)
class Waits:
    """Times in a queue.

    Attributes:
        mean_s: of them.
        exponential: true if they are exponential; otherwise all are alike, or ``seen`` is drawn from.
        seen: times of a trace, one of which it is, at random; none of these if empty.
    """

    mean_s: float = 0.0
    exponential: bool = False
    seen: tuple[float, ...] = ()

    @property
    def random(self) -> bool:
        """True if one is not like the next."""
        return self.exponential or len(set(self.seen)) > 1

    def one_s(self, random: np.random.Generator) -> float:
        """How long it takes this time."""
        if self.seen:
            return self.seen[int(random.integers(len(self.seen)))]
        return float(random.exponential(self.mean_s)) if self.exponential else self.mean_s


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What the scheduler does.

    Attributes:
        limit_s: a job has so much time at once, from its turn on.
        preemption_s: mean time after which it has to make room; exponential.
        notice_s: it is told so long before either.
        waits: in the queue.
    """

    limit_s: float = math.inf
    preemption_s: float = math.inf
    notice_s: float = 0.0
    waits: Waits = Waits()

    @property
    def random(self) -> bool:
        """True if chance has a part in it."""
        return math.isfinite(self.preemption_s) or self.waits.random

    def ends_per_s(self) -> float:
        """How often the job is ended, about."""
        rate = 1 / self.preemption_s + 1 / self.limit_s
        return 1 / (1 / rate + self.waits.mean_s) if rate else 0.0
