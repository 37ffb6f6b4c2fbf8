"""A job's turn in a simulation: the clocks that end it, and the notice before."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy

from .failures import Failure
from .scheduling import PREEMPTION, TIME_LIMIT, Scheduling


class Turn:
    """The job's turn: from its leaving the queue to its end.

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

    def preempt(self, at_s: float) -> None:
        """It is told now, by a trace, and ends at a time; later than now by the notice, or by what is left of it."""
        if self.running:
            self._clocks.append(self._env.process(self._clock(max(0.0, at_s - self._env.now), PREEMPTION)))

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
