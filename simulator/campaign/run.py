"""A run of weeks, event by event: training, checkpoints, failures, restarts.

Rules are the library's: at most two checkpoints in the background, the next waits for one of them; staging memory is
free once the local part is written; levels complete in order, the newest ``keep`` of each stay; after a failure the
restart planner finds the newest step that survives, and what a step lost is rebuilt in the background. One seed is
one sequence of events, always the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import simpy

from deeppart.model import LEVELS, MOST_IN_FLIGHT, REDUNDANT_LEVELS, Level

from .comeback import pieces_s, stopped_s
from .costs import NOTHING
from .failures import Failure, Size, drawn, rates_per_s
from .filesystem import SharedBandwidth, Transfer, bursts
from .plan import Cadences, Planned
from .result import RunResult
from .retention import retire
from .survival import Stored, recover

#: Mean length of a burst of other jobs on the file system.
_BURST_S = 300.0
#: The pieces of a comeback that come before nodes are gathered, and after that.
_BEFORE, _AFTER = ("detect", "requeue"), ("relaunch", "imports", "communicator", "first_step")
#: How often a run tells how far it is: so many times in all.
_TICKS = 100

Events = Generator[Any, Any, None]


def run(
    planned: Planned,
    cadences: Cadences,
    seed: int,
    trace: tuple[Failure, ...] | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> RunResult:
    """One run.

    Args:
        planned: the job, on any number of nodes.
        cadences: how often it checkpoints, and what it does without a node.
        seed: of everything that is random.
        trace: failures instead of drawn ones.
        progress: told the share of the run that is simulated, now and then.
    """
    simulation = _Run(planned, cadences, seed, trace)
    wall_s = cadences.wall_s
    for tick in range(1, _TICKS + 1):
        simulation.env.run(until=wall_s * tick / _TICKS)
        progress(tick / _TICKS)
    return simulation.result()


class _Run:
    def __init__(self, planned: Planned, cadences: Cadences, seed: int, trace: tuple[Failure, ...] | None) -> None:
        self.env = simpy.Environment()
        self._planned, self._cadences = planned, cadences
        self._result = RunResult(seed, cadences.wall_s)
        random = np.random.default_rng(seed)
        nodes = planned.nodes
        self._nodes = list(range(nodes))  # of the job
        self._spares = list(range(nodes, nodes + cadences.spares))
        self._world = planned.on(nodes)
        self._result.least_nodes = nodes
        self._doing, self._since, self._rate = "training", 0.0, 0.0
        self._progress = 0.0
        self._stored: list[Stored] = []
        self._sequence = 0
        self._background: list[simpy.Process] = []
        self._in_flight = 0
        self._hit: set[str] = set()  # classes of the failures since training last ran
        self._cold = False  # true if a node joins on which nothing has been started
        self._staging_free = True
        self._changed = self.env.event()
        self._node_back = self.env.event()
        self._protect = simpy.Resource(self.env)
        self._turns = simpy.Resource(self.env)
        persistent = planned.job.machine.persistent
        self._file_system = SharedBandwidth(self.env, persistent.write)
        size = Size(planned.job.ranks, nodes)
        self._rates = rates_per_s(planned.job.machine.failures, size)
        failures = iter(trace) if trace is not None else drawn(planned.job.machine.failures, size, random.spawn(1)[0])
        self._job = self.env.process(self._live())
        self.env.process(self._fail(failures))
        self.env.process(
            bursts(self.env, self._file_system, persistent.write, persistent.others, _BURST_S, random.spawn(1)[0])
        )

    def result(self) -> RunResult:
        """The figures of the run until now; to be called once, at the end."""
        # What is under way then has not been accounted yet.
        elapsed = self.env.now - self._since
        self._result.buckets[self._doing] += elapsed
        self._work(elapsed)
        self._result.useful_s = self._progress
        # The process under way will be closed when the simulation is freed, and then account its time once more.
        return copy.deepcopy(self._result)

    # --- the job ------------------------------------------------------------------------------------------------------

    def _live(self) -> Events:
        failed = False
        while True:
            try:
                if failed:
                    yield from self._restart()
                    failed = False
                while True:
                    yield from self._train(self._cadences.period_s)
                    yield from self._checkpoint()
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
        while goal - self._progress > 1e-9 * amount_s:
            full = self._world.speed
            self._rate = full * (1 - self._planned.job.machine.interference) if self._in_flight else full
            began = self.env.now
            try:
                self._changed = self.env.event()
                rest_s = (goal - self._progress) / self._rate
                yield from self._spend("training", self.env.timeout(rest_s) | self._changed)
            finally:
                self._work(self.env.now - began)
                self._rate = 0.0

    def _work(self, elapsed_s: float) -> None:
        """Training has gone on for so long, at the rate of the moment."""
        self._progress += elapsed_s * self._rate
        if self._rate:
            self._result.slowed_s += elapsed_s * (self._world.speed - self._rate)

    def _checkpoint(self) -> Events:
        due = self._cadences.due(self._sequence)
        while due and not (self._staging_free and self._in_flight < MOST_IN_FLIGHT):
            self._changed = self.env.event()
            yield from self._spend("waiting", self._changed)
        if due:
            yield from self._spend("blocked", self.env.timeout(self._world.times.blocked_s))
            stored = Stored(self._sequence, self._progress, tuple(self._nodes))
            self._staging_free = False
            self._in_flight += 1
            self._background = [process for process in self._background if process.is_alive]
            self._background.append(self.env.process(self._complete(stored, due)))
        self._sequence += 1

    # --- the background -----------------------------------------------------------------------------------------------

    def _complete(self, stored: Stored, due: tuple[str, ...]) -> Events:
        """One checkpoint through its levels. A failure of the job ends it, with what is complete by then."""
        stages = self._world.stages
        flush = None
        try:
            if self._world.times.lazy:
                yield self.env.timeout(stages["capture"])
            if Level.PERSISTENT in due:
                flush = self.env.process(self._flush(stored, Level.LOCAL not in due))
                self._background.append(flush)
            if Level.LOCAL in due:
                yield self.env.timeout(self._world.local_s)
                self._done(stored, Level.LOCAL)
                self._free_staging()
            redundant = [level for level in REDUNDANT_LEVELS if level in due and stages[level]]
            if redundant:
                with self._protect.request() as turn:
                    yield turn
                    for level in redundant:
                        yield self.env.timeout(stages[level])
                        self._done(stored, level)
            if flush is not None:
                yield flush
            if Level.LOCAL not in due:
                self._free_staging()
            self._in_flight -= 1
            self._tell()
        except simpy.Interrupt:
            pass

    def _flush(self, stored: Stored, from_memory: bool) -> Events:
        transfer: Transfer | None = None
        try:
            with self._turns.request() as turn:
                yield turn
                began = self.env.now
                if from_memory and self._world.stages["encode"]:
                    yield self.env.timeout(self._world.stages["encode"])
                transfer = self._file_system.begin(self._world.flushed_bytes, self._world.flush_rate)
                yield transfer.done
                transfer = None
                # Files have to be created, and the copy cannot be done before the file that it follows.
                least = self._world.flush_latency_s
                if not from_memory:
                    least = max(least, began + self._world.local_s - self.env.now)
                yield self.env.timeout(least)
                self._done(stored, Level.PERSISTENT)
        except simpy.Interrupt:
            if transfer is not None:
                self._file_system.give_up(transfer)

    def _done(self, stored: Stored, level: str) -> None:
        """A level is complete: count it, and let go what ``keep`` no longer wants."""
        result = self._result
        result.checkpoints[level] = result.checkpoints.get(level, 0) + 1
        result.nbytes[level] = result.nbytes.get(level, 0) + self._world.level_bytes[level]
        stored.levels.add(level)
        if stored not in self._stored:
            self._stored.append(stored)
        self._stored = retire(self._stored, self._cadences.keep)

    def _free_staging(self) -> None:
        if not self._staging_free:
            self._staging_free = True
            self._tell()

    def _tell(self) -> None:
        if not self._changed.triggered:
            self._changed.succeed()

    # --- failures -----------------------------------------------------------------------------------------------------

    def _fail(self, failures: Iterator[Failure]) -> Events:
        for failure in failures:
            if failure.at_s > self._cadences.wall_s:
                return
            yield self.env.timeout(max(0.0, failure.at_s - self.env.now))
            if any(place < len(self._nodes) for place in failure.nodes):
                self._job.interrupt(failure)

    def _strike(self, failure: Failure) -> None:
        """Processes are gone, and so is what was under way; of lost nodes, everything on their storage."""
        self._hit.add(failure.kind)
        failures = self._result.failures
        failures[failure.kind] = failures.get(failure.kind, 0) + 1
        for process in self._background:
            if process.is_alive:
                process.interrupt()
        self._background, self._in_flight, self._staging_free = [], 0, True
        if failure.kind == "process":
            return
        struck = [self._nodes[place] for place in failure.nodes if place < len(self._nodes)]
        for stored in self._stored:
            stored.lost.update(struck)
        if failure.kind != "system":  # after that the nodes come back, empty
            self._nodes = [node for node in self._nodes if node not in set(struck)]
            for node in struck:
                self.env.process(self._repair(node))

    def _repair(self, node: int) -> Events:
        yield self.env.timeout(self._planned.job.machine.restart.repair)
        self._spares.append(node)
        if not self._node_back.triggered:
            self._node_back.succeed()

    def _restart(self) -> Events:
        yield from self._pay(_BEFORE)
        yield from self._gather_nodes()
        yield from self._pay(_AFTER)
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
        recovery = recover(self._stored, self._nodes, self._planned.job.protection, self._planned.domain_nodes)
        if recovery is None:
            self._lose(0.0)
            return NOTHING
        stored = recovery.stored
        duration = self._world.restore_s(recovery.parts, len(stored.nodes))
        yield from self._spend("restoring", self.env.timeout(duration))
        self._lose(stored.progress_s)
        # What came after it is of no use, and the library removes it.
        self._stored = [each for each in self._stored if each.sequence <= stored.sequence]
        self._background.append(self.env.process(self._heal(stored)))
        return recovery.level

    # --- growing back -------------------------------------------------------------------------------------------------

    def _worth_growing(self) -> bool:
        """True if repaired nodes are worth a restart, counted until the next failure, at which they join anyway."""
        if not self._cadences.elastic or not self._spares or not self._stored:
            return False
        usable = self._planned.usable(len(self._nodes) + len(self._spares))
        if usable <= len(self._nodes):
            return False
        more, restart = self._planned.on(usable), self._planned.job.machine.restart
        newest = self._stored[-1]
        parts = {min(newest.levels, key=LEVELS.index): len(newest.nodes)}
        taken_s = stopped_s(restart, more.job.ranks) + more.restore_s(parts, len(newest.nodes))
        failures_per_s = sum(self._rates.values())
        return (more.speed - self._world.speed) > self._world.speed * taken_s * failures_per_s

    def _grow(self) -> Events:
        """Stop in good order after a checkpoint, and go on from it with more nodes."""
        while self._in_flight:
            self._changed = self.env.event()
            yield from self._spend("waiting", self._changed)
        self._hit = {"node"}  # nodes join as if they replaced others
        yield from self._pay(_BEFORE[1:])
        yield from self._gather_nodes()
        yield from self._pay(_AFTER)
        yield from self._recover()
        self._hit = set()
        self._result.grown += 1

    def _gather_nodes(self) -> Events:
        wanted = self._planned.nodes
        if len(self._nodes) < wanted and self._spares:
            self._hit.add("node")
            yield from self._pay(("replace",))
        self._take_spares(wanted)
        while not self._fits():
            self._cold = True
            self._node_back = self.env.event()
            yield from self._spend("short of nodes", self._node_back)
            self._take_spares(wanted)
        self._world = self._planned.on(len(self._nodes))
        self._result.least_nodes = min(self._result.least_nodes, len(self._nodes))

    def _take_spares(self, wanted: int) -> None:
        while len(self._nodes) < wanted and self._spares:
            self._nodes.append(self._spares.pop(0))
        self._nodes.sort()

    def _fits(self) -> bool:
        """True if training can continue with these nodes; leaves out those that the layout cannot use."""
        if not self._cadences.elastic:
            return len(self._nodes) == self._planned.nodes
        usable = self._planned.usable(len(self._nodes))
        self._spares += self._nodes[usable:] if usable else []
        self._nodes = self._nodes[:usable] if usable else self._nodes
        return usable > 0

    def _heal(self, stored: Stored) -> Events:
        """Rebuild what the restored step lost of its levels on nodes, where it is now at home."""
        try:
            with self._protect.request() as turn:
                yield turn
                yield self.env.timeout(self._world.heal_s)
            stored.nodes, stored.lost = tuple(self._nodes), set()
            stored.levels.update(self._cadences.node_levels)
        except simpy.Interrupt:
            pass

    def _lose(self, progress_s: float) -> None:
        self._result.lost_s += self._progress - progress_s
        self._progress = progress_s
