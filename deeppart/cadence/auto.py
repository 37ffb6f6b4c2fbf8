"""Decides whether a call of ``checkpoint()`` makes a checkpoint, and at which levels: rank 0 decides for all ranks.

Ranks *check* together, in one small reduction, which also says after how many calls the next check follows. Most calls
communicate nothing. Since steps vary in length, checks become more frequent as the next checkpoint comes closer.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from deeppart.cadence.failures import Run, failure_rates
from deeppart.cadence.history import History
from deeppart.comm import Comm, finish
from deeppart.model import LEVELS, Level, Report, show_seconds, show_share
from deeppart.pending import DONE, FAILED, Pending
from deeppart.plan.interval import COST_FIELDS, Cadence, LevelCost, best

#: With this many calls left or fewer, the next check is at the last of them.
_NEAR = 8
#: The cadence stays if no cost has changed by more than this share: it then wastes at most 0.1 % more than the best.
_ALIKE = 0.05
#: Seconds between checks while no cost is known, or the pipeline is full.
PAUSE_S = 0.5
#: Most seconds between checks, since a rank may be asked to stop.
_LOOK_S = 5.0
#: Assumed slowdown of training while the background works, until this many steps of each kind were measured
#: (docs/benchmarks.md, "Lazy capture": 1.5 to 3.2 %).
GUESSED_SLOWDOWN = 0.03
#: Lower bound of the slowdown: even if training is not slowed, the file system and its other users are.
LEAST_SLOWDOWN = 0.01
_LEAST_STEPS = 100
#: Latest steps of each kind to compare. Many, since steps vary by more than the slowdown.
_STEPS = 1000
_REPORTS = 5
#: Lower bound of a checkpoint's cost.
_LEAST_COST_S = 1e-4


@dataclass(frozen=True, slots=True)
class CadenceReport:
    """The cadence in use, and the measurements behind it.

    Attributes:
        cadence: period, levels, expected waste.
        costs: measured costs of the levels, and the rates of the failures that need them. The cadence is computed again
            when one of them has changed by more than 5 %.
        failures: number of earlier runs in this directory that ended in a failure.
        observed_s: total duration of those runs, in seconds.
        slowdown: fraction by which training is slower while the background works.

    Example:
        >>> import deeppart
        >>> with deeppart.Checkpointer(persistent_dir="ckpt", every="auto") as checkpointer:
        ...     checkpointer.checkpoint({"epoch": 1}, step=1).wait()  # the first tells what checkpoints cost
        ...     pending = checkpointer.checkpoint({"epoch": 2}, step=2, force=True)
        ...     print(checkpointer.cadence)
        persistent every ...
          expected to be lost: ...
          a failure every ... (no earlier run seen); training is 3 % slower while the background works
    """

    cadence: Cadence
    costs: tuple[LevelCost, ...]
    failures: int
    observed_s: float
    slowdown: float

    def __str__(self) -> str:
        rate = sum(cost.failures_per_s for cost in self.costs)
        often = f"a failure every {show_seconds(1 / rate)}" if rate else "no failures"
        seen = f"{self.failures} seen in {show_seconds(self.observed_s)}" if self.observed_s else "no earlier run seen"
        slower = f"training is {show_share(self.slowdown)} slower while the background works"
        return f"{self.cadence}\n  {often} ({seen}); {slower}"


class CostMeter:
    """Measures on rank 0 what checkpoints cost the training.

    A checkpoint costs the time for which the call blocks, and the slowdown of training while the background works. The
    slowdown is measured by comparing the times between calls, which are training steps, with and without background
    work. Times are seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self._open: list[Pending] = []
        self._reports: deque[Report] = deque(maxlen=_REPORTS)
        self._done: dict[str, deque[Report]] = {level: deque(maxlen=_REPORTS) for level in LEVELS}
        self._first: Report | None = None
        self._steps = {True: deque[float](maxlen=_STEPS), False: deque[float](maxlen=_STEPS)}
        self._left: tuple[float, bool] | None = None

    def entered(self, now: float, *, working: bool) -> None:
        """A call begins."""
        if self._left is not None and self._left[1] == working:
            self._steps[working].append(now - self._left[0])
        self._left = None

    def left(self, now: float, *, working: bool) -> None:
        """The call ends without a checkpoint."""
        self._left = (now, working)

    def made(self, pending: Pending) -> None:
        """The call makes a checkpoint. The next step is not measured, because it includes ``held_s``."""
        self._open.append(pending)

    @property
    def step_s(self) -> float:
        """Median time between calls; 0 before the second call."""
        known = [*self._steps[False], *self._steps[True]]
        return median(known) if known else 0.0

    @property
    def slowdown(self) -> float:
        """The fraction by which a step is slower while the background works."""
        idle, working = self._steps[False], self._steps[True]
        if min(len(idle), len(working)) < _LEAST_STEPS:
            return GUESSED_SLOWDOWN
        return max(LEAST_SLOWDOWN, median(working) / max(median(idle), 1e-9) - 1)

    @property
    def waiting(self) -> bool:
        """True if costs are unknown, because no checkpoint has finished yet."""
        return not self._reports

    def take_failures(self) -> frozenset[str]:
        """The levels that failed in checkpoints finished since the last call."""
        done = [pending for pending in self._open if pending.finished]
        self._open = [pending for pending in self._open if pending not in done]
        reports = [pending.report for pending in done if not pending.skipped]
        for report in reports:
            self._keep(self._reports, report)
            for name, level in report.levels.items():
                if level.state == DONE:
                    self._keep(self._done[name], report)
        return frozenset(name for report in reports for name, level in report.levels.items() if level.state == FAILED)

    def _keep(self, kept: deque[Report], report: Report) -> None:
        """Add a report. The first checkpoint's, which also allocates and plans, is dropped when the next one comes."""
        if self._first is None:
            self._first = report
        elif kept and kept[0] is self._first:
            kept.clear()
        kept.append(report)

    def costs(self, levels: Collection[str], rates: Mapping[str, float], flush_share: float = 1.0) -> list[LevelCost]:
        """The cost of each level, as medians over its last checkpoints."""
        blocked = [report.blocked_s - report.waited_s + report.held_s for report in self._reports]
        call_s = max(median(blocked) if blocked else 0.0, _LEAST_COST_S)
        found: list[LevelCost] = []
        for level in (name for name in LEVELS if name in levels):
            done = self._done[level]
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


@dataclass(slots=True)
class Decider:
    """The decisions of rank 0, without communication or clock.

    Attributes:
        report: the cadence in use; None while too little is known.
    """

    levels: Collection[str]
    nodes: int
    runs: Sequence[Run] = ()
    flush_share: float = 1.0
    meter: CostMeter = field(default_factory=CostMeter)
    report: CadenceReport | None = None
    _made_at: float | None = None
    _since: dict[str, int] = field(default_factory=dict)

    def decide(self, now: float, *, room: bool) -> tuple[frozenset[str], int]:
        """Return the levels to which this call saves, and the number of calls until the next check."""
        for level in self.meter.take_failures():
            self._since[level] = max(self._since.get(level, 0), 10**9)  # retried with the next checkpoint
        if self._made_at is None:
            return frozenset(self.levels), 1
        if self.meter.waiting:
            return frozenset(), self.calls_within(PAUSE_S)
        cadence = self._updated().cadence
        left = self._made_at + cadence.period_s - now
        if left > self.meter.step_s / 2:
            calls = self.calls_within(left)
            return frozenset(), calls if calls <= _NEAR else calls // 2
        if not room:
            return frozenset(), self.calls_within(PAUSE_S)
        return frozenset(level for level in self.levels if self._since.get(level, 0) + 1 >= cadence.every[level]), 1

    def made(self, now: float, pending: Pending) -> None:
        """Record that a checkpoint has begun."""
        self._made_at = now
        self.meter.made(pending)
        due = pending.levels
        for level in self.levels:
            self._since[level] = 0 if level in due else self._since.get(level, 0) + 1

    def calls_within(self, seconds: float) -> int:
        """The expected number of calls in ``seconds``, at least one."""
        return max(1, round(seconds / self.meter.step_s)) if self.meter.step_s else 1

    def _updated(self) -> CadenceReport:
        costs = self.meter.costs(self.levels, failure_rates(self.nodes, self.levels, self.runs), self.flush_share)
        if self.report is None or not _alike(costs, self.report.costs):
            self.report = CadenceReport(
                best(costs, self.meter.step_s),
                tuple(costs),
                sum(run.failed for run in self.runs),
                sum(run.seconds for run in self.runs),
                self.meter.slowdown,
            )
        return self.report


def _alike(costs: Sequence[LevelCost], others: Sequence[LevelCost]) -> bool:
    """True if the cadence for one is still good for the other: the optimum is flat, and finding it takes time."""
    return len(costs) == len(others) and all(
        math.isclose(getattr(cost, field), getattr(other, field), rel_tol=_ALIKE)
        for cost, other in zip(costs, others, strict=True)
        for field in COST_FIELDS
    )


class AutoCadence:
    """The cadence of one rank."""

    def __init__(
        self,
        comm: Comm,
        every: Mapping[str, int],
        nodes: int,
        history: History | None,
        timeout: float,
        flush_share: float = 1.0,
    ) -> None:
        self._comm, self._timeout = comm, timeout
        self._levels = tuple(level for level in LEVELS if every[level])
        self._history = history
        runs = () if history is None else history.runs
        self._decider = Decider(self._levels, nodes, runs, flush_share) if comm.rank == 0 else None
        self._calls_left = 1
        self._last: tuple[int, bool] | None = None

    @property
    def unsaved_step(self) -> int | None:
        """The step of the last call if it made no checkpoint, otherwise None."""
        return None if self._last is None or self._last[1] else self._last[0]

    @property
    def report(self) -> CadenceReport | None:
        """The cadence in use, on rank 0; None on other ranks, and before the first checkpoint is complete."""
        return None if self._decider is None else self._decider.report

    def due(self, step: int, *, room: bool, working: bool, force: bool, is_last: bool = False) -> frozenset[str]:
        """Return the levels to which a call saves, usually none (collective).

        With ``force`` on all ranks: all levels. With ``is_last`` on any rank: all levels, at the next check.
        """
        self._last = (step, False)
        if self._decider is not None:
            self._decider.meter.entered(time.monotonic(), working=working)
        self._calls_left -= 1
        due = frozenset[str]()
        if self._calls_left <= 0 or force:
            due = self._agree_on_due(step, room=room, force=force or is_last)
        if self._decider is not None and not due:
            self._decider.meter.left(time.monotonic(), working=working)
        return due

    def _agree_on_due(self, step: int, *, room: bool, force: bool) -> frozenset[str]:
        """Return the levels due by rank 0's decision; none if a rank's pipeline is full, unless forced (collective)."""
        due, calls, pause = frozenset[str](), 1, 1
        if self._decider is not None:
            due, calls = self._decider.decide(time.monotonic(), room=room)
            calls = min(calls, self._decider.calls_within(_LOOK_S))
            pause = self._decider.calls_within(PAUSE_S)
        mine = [int(level in due) for level in LEVELS] + [calls, pause, int(not room), int(force)]
        what = f"checkpoint(step={step}), whether it is due"
        found = finish(self._comm, self._comm.maximum(np.array(mine, dtype=np.int64)), what, self._timeout).tolist()
        *flags, calls, pause, full, forced = found
        if forced:
            self._calls_left = 1
            return frozenset(self._levels)
        if full and any(flags):
            self._calls_left = pause
            return frozenset()
        self._calls_left = calls
        return frozenset(level for level, flag in zip(LEVELS, flags, strict=True) if flag)

    def made(self, pending: Pending) -> None:
        """Record that a checkpoint has begun, and was not skipped."""
        self._last = (pending.step, True)
        if self._decider is not None:
            self._decider.made(time.monotonic(), pending)

    def restored(self, level: str) -> None:
        """Record the slowest level from which this run was restored."""
        if self._history is not None and self._decider is not None:
            self._history.restored(level)
            self._decider.runs = self._history.runs

    def end(self, *, failed: bool) -> None:
        """Record the end of the run."""
        if self._history is not None:
            self._history.end(failed=failed)
