"""Simulates a run of weeks, event by event: training, checkpoints, failures, restarts.

The rules are the library's: at most two checkpoints are in the background, and the next one waits; staging memory is
free once the local part is written; levels complete in order, and each keeps its newest ``keep``; after a failure the
restart planner finds the newest surviving step, whose lost files are rebuilt in the background. A seed always gives the
same sequence of events. Several calls in a row that write only to nodes are one event (:func:`calm_row`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from deeppart.model import LEVELS, Level

from ..traces.record import PREEMPTION, TIME_LIMIT
from .background import Background, bursts, trigger
from .costs import NOTHING
from .failures import AFTER, ENDS, Failure, Scheduling, drawn, pieces_s, rates_per_s, repair_after_s, stopped_s
from .outcomes import RunResult
from .plan import Cadences, Planned, SizedJob
from .survival import JobNodes, Stored, recover

#: Mean length of a burst of other jobs on the file system.
_BURST_S = 300.0
#: Margin for rounding in the time until the next failure.
_ROUNDING_S = 1e-3
#: The pieces of a restart before its nodes are available.
_BEFORE = ("detect", "requeue")

Events = Generator[Any, Any, None]


def run(planned: Planned, cadences: Cadences, seed: int, trace: tuple[Failure, ...] | None = None) -> RunResult:
    """Simulate one run."""
    simulation = _Run(planned, cadences, seed, trace)
    simulation.env.run(until=cadences.wall_s)
    return simulation.result()


class _Run:
    def __init__(self, planned: Planned, cadences: Cadences, seed: int, trace: tuple[Failure, ...] | None) -> None:
        self.env = simpy.Environment()
        self._planned, self._cadences = planned, cadences
        self._result = RunResult(seed, cadences.wall_s)
        random = np.random.default_rng(seed)
        nodes = planned.nodes
        self._nodes = JobNodes(nodes, cadences.spares)
        self._world = planned.on(nodes)
        self._result.least_nodes = nodes
        self._doing, self._since, self._rate = "training", 0.0, 0.0
        self._failure_s = math.inf  # time of the next failure
        self._wake = self.env.event()  # interrupts training
        self._progress = 0.0
        self._sequence = self._first = 0  # of the next call, and of the session's first one
        self._hit: set[str] = set()  # classes of the failures since training last ran
        self._cold = False  # true if a node joins on which no process has been started
        self._node_back = self.env.event()
        persistent = planned.job.machine.persistent
        self._background = Background(self.env, cadences, self._result, persistent.write)
        self._rates = rates_per_s(planned.job)
        failures = iter(trace) if trace is not None else drawn(planned.job, random.spawn(1)[0])
        self._job = self.env.process(self._live())
        self.env.process(self._fail(failures))
        shared = self._background.file_system
        self.env.process(bursts(self.env, shared, persistent.write, persistent.others, _BURST_S, random.spawn(1)[0]))
        everyone = tuple(range(nodes))
        wake, end = (lambda: trigger(self._wake)), self._job.interrupt
        self._turn = Turn(self.env, cadences.scheduling, random.spawn(1)[0], everyone, wake, end)
        self._turn.begin()

    def result(self) -> RunResult:
        """The figures of the run. Call it once, at the end."""
        # Account for the current activity.
        elapsed = self.env.now - self._since
        self._result.buckets[self._doing] += elapsed
        self._work(elapsed)
        self._result.useful_s = self._progress
        # A copy: when the simulation is freed, its process ends and accounts for the current activity once more.
        return copy.deepcopy(self._result)

    # --- the job ------------------------------------------------------------------------------------------------------

    def _live(self) -> Events:
        failed = False
        while True:
            try:
                if failed:
                    yield from self._restart()
                    failed = False
                trained_s = 0.0
                while True:
                    yield from self._train(self._cadences.period_s - trained_s)
                    if self._turn.announced is not None:
                        yield from self._leave(self._turn.announced)
                        trained_s = 0.0
                        continue
                    trained_s = yield from self._call()
                    if self._worth_growing():
                        yield from self._grow()
            except simpy.Interrupt as hit:
                assert isinstance(hit.cause, Failure)
                self._strike(hit.cause)
                failed = True

    def _spend(self, bucket: str, event: simpy.Event) -> Events:
        """Wait for an event, and account for the time even if interrupted."""
        self._doing, self._since = bucket, self.env.now
        try:
            yield event
        finally:
            self._result.buckets[bucket] += self.env.now - self._since
            self._since = self.env.now

    def _train(self, amount_s: float) -> Events:
        """Train for ``amount_s`` of work, in seconds of the whole job at full speed."""
        goal = self._progress + amount_s
        while goal - self._progress > 1e-9 * amount_s and self._turn.announced is None:
            full = self._world.speed
            self._rate = full * (1 - self._planned.job.machine.interference) if self._background.is_busy else full
            began = self.env.now
            try:
                rest_s = (goal - self._progress) / self._rate
                yield from self._spend("training", self._change_within(rest_s))
            finally:
                self._work(self.env.now - began)
                self._rate = 0.0

    def _change_within(self, seconds: float) -> simpy.Event:
        """An event that happens after ``seconds``, when the background becomes idle, or when notice is given."""
        changed: simpy.Event = self._background.over()
        self._wake = changed
        # simpy's `timeout | event` does the same, but takes three times as long.
        timer = self.env.timeout(seconds)
        assert timer.callbacks is not None
        timer.callbacks.append(lambda _: trigger(changed))
        return changed

    def _work(self, elapsed_s: float) -> None:
        """Account for training of ``elapsed_s`` at the current rate."""
        self._progress += elapsed_s * self._rate
        if self._rate:
            self._result.slowed_s += elapsed_s * (self._world.speed - self._rate)

    def _checkpoint(self, force: bool = False) -> Events:
        due = self._cadences.due(0 if force else self._sequence - self._first)
        while due and not self._background.has_room:
            yield from self._spend("waiting", self._background.change())
        if due:
            yield from self._spend("blocked", self.env.timeout(self._world.blocked_s))
            stored = Stored(self._sequence, self._progress, tuple(self._nodes.used))
            self._background.begin(self._world, stored, due)
        self._sequence += 1

    def _call(self) -> Generator[Any, Any, float]:
        """Simulate a call, or a row of calls that write only to nodes; returns the work since the last one."""
        speed, interference = self._world.speed, self._planned.job.machine.interference
        until_s = min(self._failure_s, self._turn.ends_s, self._cadences.wall_s) - _ROUNDING_S
        may_grow = self._cadences.elastic and self._nodes.missing > 0
        may_be_told = self._cadences.scheduling.notice_s > 0  # a row cannot be interrupted by a notice
        row = None
        if not may_grow and not may_be_told and self._background.is_idle:
            number = self._sequence - self._first
            row = calm_row(self._world, self._cadences, number, interference, until_s - self.env.now)
        if row is None:
            yield from self._checkpoint()
            return 0.0
        yield self.env.timeout(row.takes_s)
        result, period_s, nodes = self._result, self._cadences.period_s, tuple(self._nodes.used)
        result.buckets["training"] += row.takes_s - row.blocked_s
        result.buckets["blocked"] += row.blocked_s
        result.slowed_s += speed * interference * row.busy_s
        self._doing, self._since = "training", self.env.now
        stored = (
            Stored(self._sequence + number, self._progress + number * period_s, nodes, set(levels))
            for number, levels in enumerate(row.levels)
        )
        self._background.add(self._world, stored)
        since = speed * (1 - interference) * row.since_s
        self._sequence += len(row.levels)
        self._progress += (len(row.levels) - 1) * period_s + since
        return since

    # --- the scheduler ------------------------------------------------------------------------------------------------

    def _leave(self, kind: str) -> Events:
        """After a notice: save everything, leave, and wait for the next turn."""
        yield from self._checkpoint(force=True)
        while self._background.is_busy:
            yield from self._spend("leaving", self._background.over())
        ends = self._result.ends
        ends[kind] = ends.get(kind, 0) + 1
        self._result.in_time += 1
        self._forget_nodes()
        yield from self._restart()

    def _forget_nodes(self) -> None:
        """End the turn: the files on its nodes are lost."""
        self._turn.over()
        self._background.end()
        for stored in self._background.stored:
            stored.lost.update(stored.nodes)

    # --- failures -----------------------------------------------------------------------------------------------------

    def _fail(self, failures: Iterator[Failure]) -> Events:
        for failure in failures:
            preempted = failure.kind == PREEMPTION
            notice_s = self._cadences.scheduling.notice_s if preempted else 0.0
            self._failure_s = failure.at_s - notice_s
            if failure.at_s > self._cadences.wall_s:
                return
            yield self.env.timeout(max(0.0, failure.at_s - notice_s - self.env.now))
            if preempted:
                self._turn.preempt(failure.at_s)
            elif self._turn.running and self._nodes.at(failure.nodes):
                self._job.interrupt(failure)
        self._failure_s = math.inf

    def _strike(self, failure: Failure) -> None:
        """Apply a failure: checkpoints in progress are lost, and everything on lost nodes."""
        failures = self._result.ends if failure.kind in ENDS else self._result.failures
        failures[failure.kind] = failures.get(failure.kind, 0) + 1
        self._background.end()
        if failure.kind in ENDS:
            self._forget_nodes()
            return
        self._hit.add(failure.kind)
        if failure.kind == "process":
            return
        everything = failure.kind == "system"  # the same nodes come back with empty storage
        struck = self._nodes.at(failure.nodes) if everything else self._nodes.lose(failure.nodes)
        for stored in self._background.stored:
            stored.lost.update(struck)
        if not everything:
            repair_s = repair_after_s(self._planned.job.machine, failure.kind)
            for _ in struck:
                self.env.process(self._repair(repair_s, self._nodes.turn))

    def _repair(self, repair_s: float, turn: int) -> Events:
        yield self.env.timeout(repair_s)
        if turn != self._nodes.turn:  # the job has other nodes now
            return
        self._nodes.repaired()
        trigger(self._node_back)

    def _restart(self) -> Events:
        if self._turn.running:
            yield from self._pay(_BEFORE)
            yield from self._gather_nodes()
        else:  # the job gets other nodes, and starts from the beginning on them
            yield from self._spend("queued", self.env.timeout(self._turn.wait_s()))
            self._turn.begin()
            self._hit, self._cold = {"system"}, False
            self._nodes.renew()
            yield from self._gather_nodes()
        yield from self._pay(AFTER)
        level = yield from self._recover()
        self._hit, self._cold = set(), False
        self._result.recoveries[level] = self._result.recoveries.get(level, 0) + 1

    def _pay(self, pieces: tuple[str, ...]) -> Events:
        """Be down for those of ``pieces`` that the last failures require."""
        restart = self._planned.job.machine.restart
        paid = pieces_s(restart, self._world.job.ranks, self._hit, cold=self._cold)
        yield from self._spend("down", self.env.timeout(sum(paid.get(piece, 0.0) for piece in pieces)))

    def _recover(self) -> Generator[Any, Any, str]:
        """Restore the newest surviving step; returns the slowest level that was needed."""
        self._first = self._sequence  # the first call of a session writes all levels
        recovery = recover(
            self._background.stored, self._nodes.used, self._planned.job.protection, self._planned.domain_nodes
        )
        if recovery is None:
            self._lose(0.0)
            return NOTHING
        stored = recovery.stored
        duration = self._world.restore_s(recovery.parts, len(stored.nodes))
        yield from self._spend("restoring", self.env.timeout(duration))
        self._lose(stored.progress_s)
        self._background.forget_after(stored.sequence)
        self._background.heal(self._world, stored, self._nodes.used)
        return recovery.level

    # --- growing back -------------------------------------------------------------------------------------------------

    def _worth_growing(self) -> bool:
        """True if adding repaired nodes is worth a restart: they would join at the next failure anyway."""
        now = len(self._nodes.used)
        if not self._cadences.elastic or not self._nodes.waiting or not self._background.stored:
            return False
        usable = self._planned.usable(now + self._nodes.waiting)
        if usable <= now:
            return False
        more, restart = self._planned.on(usable), self._planned.job.machine.restart
        newest = max(self._background.stored, key=lambda each: each.sequence)
        parts = {min(newest.levels, key=LEVELS.index): len(newest.nodes)}
        taken_s = stopped_s(restart, more.job.ranks) + more.restore_s(parts, len(newest.nodes))
        failures_per_s = sum(self._rates.values())
        return (more.speed - self._world.speed) > self._world.speed * taken_s * failures_per_s

    def _grow(self) -> Events:
        """Stop after a checkpoint, and continue from it with more nodes."""
        while self._background.is_busy:
            yield from self._spend("waiting", self._background.over())
        self._hit = {"node"}  # nodes join as if they replaced others
        yield from self._pay(_BEFORE[1:])
        yield from self._gather_nodes()
        yield from self._pay(AFTER)
        yield from self._recover()
        self._hit = set()
        self._result.grown += 1

    def _gather_nodes(self) -> Events:
        """Get as many nodes as possible, with the delay of a replacement, and wait for repairs if there are too few."""
        if self._nodes.missing and self._nodes.waiting:
            self._hit.add("node")
            yield from self._pay(("replace",))
        self._nodes.take()
        while not self._fits():
            self._cold = True
            self._node_back = self.env.event()
            yield from self._spend("short of nodes", self._node_back)
            self._nodes.take()
        self._world = self._planned.on(len(self._nodes.used))
        self._result.least_nodes = min(self._result.least_nodes, len(self._nodes.used))

    def _fits(self) -> bool:
        """True if training can continue with these nodes; drops nodes that the layout cannot use."""
        if not self._cadences.elastic:
            return not self._nodes.missing
        usable = self._planned.usable(len(self._nodes.used))
        if usable:
            self._nodes.keep(usable)
        return usable > 0

    def _lose(self, progress_s: float) -> None:
        self._result.lost_s += self._progress - progress_s
        self._progress = progress_s


class Turn:
    """A turn of the job: from leaving the queue until the scheduler ends it."""

    def __init__(
        self,
        env: simpy.Environment,
        scheduling: Scheduling,
        random: np.random.Generator,
        everyone: tuple[int, ...],
        notify: Callable[[], None],
        end: Callable[[Failure], None],
    ) -> None:
        self._env, self._scheduling, self._random = env, scheduling, random
        self._everyone, self._notify, self._end = everyone, notify, end
        self._clocks: list[simpy.Process] = []
        self.announced: str | None = None  # reason of the end, once there was a notice
        self.ends_s = math.inf  # time of the end or of its notice
        self.running = False  # false while the job is queued

    def begin(self) -> None:
        """Start a turn."""
        self.announced, self.ends_s, self.running = None, math.inf, True
        limit_s, preemption_s = self._scheduling.limit_s, self._scheduling.preemption_s
        if math.isfinite(limit_s):
            self._clocks.append(self._env.process(self._clock(limit_s, TIME_LIMIT)))
        if math.isfinite(preemption_s):
            # The notice is given in full in any case.
            at_s = float(self._random.exponential(preemption_s)) + self._scheduling.notice_s
            self._clocks.append(self._env.process(self._clock(at_s, PREEMPTION)))

    def preempt(self, at_s: float) -> None:
        """Announce a preemption from a trace, at ``at_s``."""
        if self.running:
            self._clocks.append(self._env.process(self._clock(max(0.0, at_s - self._env.now), PREEMPTION)))

    def over(self) -> None:
        """End the turn."""
        self.announced, self.running = None, False
        for clock in self._clocks:
            if clock.is_alive and clock is not self._env.active_process:
                clock.interrupt()
        self._clocks = []

    def wait_s(self) -> float:
        """Draw the time of the next wait in the queue."""
        return self._scheduling.waits.one_s(self._random)

    def _clock(self, after_s: float, kind: str) -> Generator[Any, Any, None]:
        notice_s = min(self._scheduling.notice_s, after_s)
        self.ends_s = min(self.ends_s, self._env.now + after_s - notice_s)
        try:
            yield self._env.timeout(after_s - notice_s)
            if notice_s:
                self.announced = self.announced or kind
                self._notify()
                yield self._env.timeout(notice_s)
            if self.running:
                self._end(Failure(self._env.now, kind, self._everyone))
        except simpy.Interrupt:
            pass


# --- rows of calls ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Row:
    """Calls in a row without events in between, and without flushes: most calls of a campaign."""

    levels: list[tuple[str, ...]]  # completed by each call
    takes_s: float = 0.0
    blocked_s: float = 0.0  # part of takes_s for which calls blocked
    busy_s: float = 0.0  # for which the background worked and slowed training down
    since_s: float = 0.0  # part of busy_s after the last call


def calm_row(world: SizedJob, cadences: Cadences, sequence: int, interference: float, within_s: float) -> Row | None:
    """The next calls that write only to nodes, each complete before the following one; None if fewer than two."""
    row, begins_s = Row([]), 0.0
    while (done := _on_nodes(world, cadences.due(sequence + len(row.levels)))) is not None:
        blocked_s, levels, busy_s = done
        trains_s = cadences.period_s / world.speed + interference * busy_s
        if busy_s >= trains_s or begins_s + blocked_s + busy_s > within_s:
            break
        row.levels.append(levels)
        row.takes_s = begins_s + blocked_s + busy_s
        row.blocked_s, row.busy_s, row.since_s = row.blocked_s + blocked_s, row.busy_s + busy_s, busy_s
        begins_s += blocked_s + trains_s
    return row if len(row.levels) > 1 else None


def _on_nodes(world: SizedJob, due: tuple[str, ...]) -> tuple[float, tuple[str, ...], float] | None:
    """(seconds blocked, levels in order, seconds in the background) of a call; None if it is flushed."""
    if Level.PERSISTENT in due:
        return None
    if not due:
        return 0.0, (), 0.0
    redundant = world.redundant(due)
    busy_s = world.local_s + (world.stages["capture"] if world.times.lazy else 0.0)
    return world.blocked_s, (str(Level.LOCAL), *redundant), busy_s + sum(world.stages[level] for level in redundant)
