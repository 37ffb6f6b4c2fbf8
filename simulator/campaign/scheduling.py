"""What a scheduler does to a job: it ends it after its time, or to make room, and starts it again when its turn comes.

The job may be told some time before (``--signal`` of Slurm, the notice of a cloud). It then makes a checkpoint at all
levels, as ``checkpoint(force=True)`` does, and leaves as soon as that is complete; if the time is too short for it, it
is ended with what is complete. Afterwards it waits in a queue for other nodes, on which nothing of it is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from .failures import Failure

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


class Turn:
    """The job's turn: from its leaving the queue to its end.

    Args:
        everyone: places of all nodes of the job.
        tell: called when the job is told that it will end.
        end: called when it ends, unless it has left before.

    Attributes:
        told: what will end it, since it was told; None before.
        running: false while it waits in the queue.
    """

    def __init__(
        self,
        env: simpy.Environment,
        scheduling: Scheduling,
        random: np.random.Generator,
        everyone: tuple[int, ...],
        tell: Callable[[], None],
        end: Callable[[Failure], None],
    ) -> None:
        self._env, self._scheduling, self._random = env, scheduling, random
        self._everyone, self._tell, self._end = everyone, tell, end
        self._clocks: list[simpy.Process] = []
        self.told: str | None = None
        self.running = False

    def begin(self) -> None:
        """The job has its nodes."""
        self.told, self.running = None, True
        limit_s, preemption_s = self._scheduling.limit_s, self._scheduling.preemption_s
        if math.isfinite(limit_s):
            self._clocks.append(self._env.process(self._clock(limit_s, TIME_LIMIT)))
        if math.isfinite(preemption_s):
            # Told in time, the job has the time of its notice in any case.
            at_s = float(self._random.exponential(preemption_s)) + self._scheduling.notice_s
            self._clocks.append(self._env.process(self._clock(at_s, PREEMPTION)))

    def preempt(self) -> None:
        """It is told now, by a trace, and ends when the notice is over."""
        if self.running:
            self._clocks.append(self._env.process(self._clock(self._scheduling.notice_s, PREEMPTION)))

    def over(self) -> None:
        """It has left, or was ended."""
        self.told, self.running = None, False
        for clock in self._clocks:
            if clock.is_alive and clock is not self._env.active_process:
                clock.interrupt()
        self._clocks = []

    def wait_s(self) -> float:
        """How long it is in the queue this time."""
        return self._scheduling.waits.one_s(self._random)

    def _clock(self, after_s: float, kind: str) -> Generator[Any, Any, None]:
        notice_s = min(self._scheduling.notice_s, after_s)
        try:
            yield self._env.timeout(after_s - notice_s)
            if notice_s:
                self.told = self.told or kind
                self._tell()
                yield self._env.timeout(notice_s)
            if self.running:
                self._end(Failure(self._env.now, kind, self._everyone))
        except simpy.Interrupt:
            pass
