"""The cost of checkpoints for training, measured on rank 0 while it trains.

A checkpoint costs the time that the call blocks, and what training is slower while the background works. The second is
told from the first by comparing the pauses between calls, that is training steps, with and without background work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from statistics import median

from deeppart.model import LEVELS, Level
from deeppart.model.reports import Report
from deeppart.pending import DONE, FAILED, Pending
from deeppart.plan.interval import LevelCost

#: Share by which training is slower while the background works, until so many steps of each kind were seen
#: (docs/benchmarks.md, "Lazy capture": 1.5 to 3.2 %).
GUESSED_SLOWDOWN = 0.03
#: It is never taken to be less: what training does not feel, the file system and those who share it do.
LEAST_SLOWDOWN = 0.01
_LEAST_STEPS = 100
#: So many of each kind are compared, the latest: steps vary, by more than the background slows them down.
_STEPS = 1000
_REPORTS = 5
#: A checkpoint is never taken to be cheaper.
_LEAST_COST_S = 1e-4


class CostMeter:
    """Watches checkpoints and the steps between them. Times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._open: list[Pending] = []
        self._reports: deque[Report] = deque(maxlen=_REPORTS)
        self._first = True
        self._steps = {True: deque[float](maxlen=_STEPS), False: deque[float](maxlen=_STEPS)}
        self._left: tuple[float, bool] | None = None

    def entered(self, now: float, *, working: bool) -> None:
        """A call begins."""
        if self._left is not None and self._left[1] == working:
            self._steps[working].append(now - self._left[0])
        self._left = None

    def left(self, now: float, *, working: bool) -> None:
        """The call ends, and has made no checkpoint."""
        self._left = (now, working)

    def made(self, pending: Pending) -> None:
        """The call has made a checkpoint. The step after that is not counted: ``held_s`` is part of it."""
        self._open.append(pending)

    @property
    def step_s(self) -> float:
        """From one call to the next; 0 until the second."""
        known = [*self._steps[False], *self._steps[True]]
        return median(known) if known else 0.0

    @property
    def slowdown(self) -> float:
        """Share by which a step is slower while the background works."""
        idle, working = self._steps[False], self._steps[True]
        if min(len(idle), len(working)) < _LEAST_STEPS:
            return GUESSED_SLOWDOWN
        return max(LEAST_SLOWDOWN, median(working) / max(median(idle), 1e-9) - 1)

    @property
    def waiting(self) -> bool:
        """True if no checkpoint has ended yet, so that nothing is known."""
        return not self._reports

    def take_failures(self) -> frozenset[str]:
        """Levels at which checkpoints failed that have come to their end since the last call."""
        done = [pending for pending in self._open if pending.finished]
        self._open = [pending for pending in self._open if pending not in done]
        reports = [pending.report for pending in done if not pending.skipped]
        if self._first and self._reports and reports:
            self._reports.clear()  # the first checkpoint reserves memory and plans: it is no measure for the others
            self._first = False
        self._reports.extend(reports)
        return frozenset(name for report in reports for name, level in report.levels.items() if level.state == FAILED)

    def costs(self, levels: Collection[str], rates: Mapping[str, float], flush_share: float = 1.0) -> list[LevelCost]:
        """The cost of each level: medians over the last checkpoints."""
        blocked = [report.blocked_s - report.waited_s + report.held_s for report in self._reports]
        call_s = max(median(blocked) if blocked else 0.0, _LEAST_COST_S)
        found: list[LevelCost] = []
        for level in (name for name in LEVELS if name in levels):
            done = [report for report in self._reports if report.levels[level].state == DONE]
            busy_s = median(report.stages_s.get(level, 0.0) for report in done) if done else 0.0
            apart_s = busy_s / flush_share if level == Level.PERSISTENT else busy_s
            latency_s = median(report.levels[level].seconds or 0.0 for report in done) if done else 0.0
            found.append(
                LevelCost(
                    level,
                    cost_s=(0.0 if found else call_s) + self.slowdown * busy_s,
                    latency_s=call_s + latency_s,
                    busy_s=apart_s,
                    restart_s=latency_s,
                    failures_per_s=rates.get(level, 0.0),
                )
            )
        return found
