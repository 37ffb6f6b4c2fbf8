"""A run of weeks, event by event: training, checkpoints, failures, restarts.

Rules are the library's: at most two checkpoints in the background, the next waits for one of them; staging memory is
free once the local part is written; levels complete in order, the newest ``keep`` of each stay; after a failure the
restart planner finds the newest step that survives, and what a step lost is rebuilt in the background. One seed is
one sequence of events, always the same. Rows of calls that go to the nodes alone are one event (:func:`calm_row`).
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
#: Rounding of the time until something strikes.
_ROUNDING_S = 1e-3
#: The pieces of a comeback that come before nodes are gathered.
_BEFORE = ("detect", "requeue")

Events = Generator[Any, Any, None]


def run(planned: Planned, cadences: Cadences, seed: int, trace: tuple[Failure, ...] | None = None) -> RunResult:
    """One run."""
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
        self._failure_s = math.inf  # when the next failure is
        self._wake = self.env.event()  # training looks up when it comes
        self._progress = 0.0
        self._sequence = self._first = 0  # of the next call, and of the session's first one
        self._hit: set[str] = set()  # classes of the failures since training last ran
        self._cold = False  # true if a node joins on which nothing has been started
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
        """The figures of the run until now; to be called once, at the end."""
        # What is under way then has not been accounted yet.
        elapsed = self.env.now - self._since
        self._result.buckets[self._doing] += elapsed
        self._work(elapsed)
        self._result.useful_s = self._progress
        # The process under way is closed when the simulation is freed, and then accounts its time once more.
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
        """Wait for an event, and account the time whatever happens."""
        self._doing, self._since = bucket, self.env.now
        try:
            yield event
        finally:
            self._result.buckets[bucket] += self.env.now - self._since
            self._since = self.env.now

    def _train(self, amount_s: float) -> Events:
        """Train for so much work: seconds of the whole job at full speed."""
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
        """An event: the background is idle, the scheduler gives notice, or so many seconds have passed."""
        changed: simpy.Event = self._background.over()
        self._wake = changed
        # simpy's `timeout | event` does the same with a dictionary for each, and takes three times as long.
        timer = self.env.timeout(seconds)
        assert timer.callbacks is not None
        timer.callbacks.append(lambda _: trigger(changed))
        return changed

    def _work(self, elapsed_s: float) -> None:
        """Training has gone on for so long, at the rate of the moment."""
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
        """A call, or a row of them that go to the nodes alone; returns the work since the last one."""
        speed, interference = self._world.speed, self._planned.job.machine.interference
        until_s = min(self._failure_s, self._turn.ends_s, self._cadences.wall_s) - _ROUNDING_S
        may_grow = self._cadences.elastic and self._nodes.missing > 0
        may_be_told = self._cadences.scheduling.notice_s > 0  # within a row nobody listens
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
        """Told that it will end, the job saves everything, leaves, and waits for its next turn."""
        yield from self._checkpoint(force=True)
        while self._background.is_busy:
            yield from self._spend("leaving", self._background.over())
        ends = self._result.ends
        ends[kind] = ends.get(kind, 0) + 1
        self._result.in_time += 1
        self._forget_nodes()
        yield from self._restart()

    def _forget_nodes(self) -> None:
        """The turn is over; what the job has on nodes is gone with them."""
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
        """Processes are gone, and so is what was under way; of lost nodes, everything on their storage."""
        failures = self._result.ends if failure.kind in ENDS else self._result.failures
        failures[failure.kind] = failures.get(failure.kind, 0) + 1
        self._background.end()
        if failure.kind in ENDS:
            self._forget_nodes()
            return
        self._hit.add(failure.kind)
        if failure.kind == "process":
            return
        everything = failure.kind == "system"  # after that the nodes come back, empty
        struck = self._nodes.at(failure.nodes) if everything else self._nodes.lose(failure.nodes)
        for stored in self._background.stored:
            stored.lost.update(struck)
        if not everything:
            repair_s = repair_after_s(self._planned.job.machine, failure.kind)
            for _ in struck:
                self.env.process(self._repair(repair_s, self._nodes.turn))

    def _repair(self, repair_s: float, turn: int) -> Events:
        yield self.env.timeout(repair_s)
        if turn != self._nodes.turn:  # it was of other nodes than the job has now
            return
        self._nodes.repaired()
        trigger(self._node_back)

    def _restart(self) -> Events:
        if self._turn.running:
            yield from self._pay(_BEFORE)
            yield from self._gather_nodes()
        else:  # other nodes are given to it, on which everything begins anew
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
        """Be down for those of some pieces that lie between what has struck and training."""
        restart = self._planned.job.machine.restart
        paid = pieces_s(restart, self._world.job.ranks, self._hit, cold=self._cold)
        yield from self._spend("down", self.env.timeout(sum(paid.get(piece, 0.0) for piece in pieces)))

    def _recover(self) -> Generator[Any, Any, str]:
        """Come back from the newest step that survives; returns the costliest level that was needed."""
        self._first = self._sequence  # a session begins, whose first call goes to all levels
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
        """True if repaired nodes are worth a restart, counted until the next failure, at which they join anyway."""
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
        """Stop in good order after a checkpoint, and go on from it with more nodes."""
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
        """As many nodes as the job can have; a spare one takes its time."""
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
        """True if training can continue with these nodes; leaves out those that the layout cannot use."""
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
    """The job's turn: from its leaving the queue to its end."""

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
        self.announced: str | None = None  # what will end it, from the notice on
        self.ends_s = math.inf  # when it will end, or get its notice
        self.running = False  # false while it waits in the queue

    def begin(self) -> None:
        """The job has its nodes."""
        self.announced, self.ends_s, self.running = None, math.inf, True
        limit_s, preemption_s = self._scheduling.limit_s, self._scheduling.preemption_s
        if math.isfinite(limit_s):
            self._clocks.append(self._env.process(self._clock(limit_s, TIME_LIMIT)))
        if math.isfinite(preemption_s):
            # Told in time, the job has the time of its notice in any case.
            at_s = float(self._random.exponential(preemption_s)) + self._scheduling.notice_s
            self._clocks.append(self._env.process(self._clock(at_s, PREEMPTION)))

    def preempt(self, at_s: float) -> None:
        """A trace ends it at some time, and the notice begins now."""
        if self.running:
            self._clocks.append(self._env.process(self._clock(max(0.0, at_s - self._env.now), PREEMPTION)))

    def over(self) -> None:
        """It has left, or was ended."""
        self.announced, self.running = None, False
        for clock in self._clocks:
            if clock.is_alive and clock is not self._env.active_process:
                clock.interrupt()
        self._clocks = []

    def wait_s(self) -> float:
        """How long it is in the queue this time."""
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


# --- calls between which nothing happens ------------------------------------------------------------------------------


@dataclass(slots=True)
class Row:
    """Calls in a row between which only what is known before happens: most calls of a campaign, and never flushes."""

    levels: list[tuple[str, ...]]  # that each call has completed
    takes_s: float = 0.0
    blocked_s: float = 0.0  # of that training has waited
    busy_s: float = 0.0  # the background has worked, and training was slower
    since_s: float = 0.0  # of that since the last call


def calm_row(world: SizedJob, cadences: Cadences, sequence: int, interference: float, within_s: float) -> Row | None:
    """The calls from a number on that go to the nodes alone, each done before the next; None if less than two."""
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
    """(seconds that a call blocks, its levels in order, seconds of its background); None if it is flushed."""
    if Level.PERSISTENT in due:
        return None
    if not due:
        return 0.0, (), 0.0
    redundant = world.redundant(due)
    busy_s = world.local_s + (world.stages["capture"] if world.times.lazy else 0.0)
    return world.blocked_s, (str(Level.LOCAL), *redundant), busy_s + sum(world.stages[level] for level in redundant)
