"""A job's checkpoints in the background: through their levels, to the file system, and rebuilt after a restart."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import simpy

from deeppart.model import MOST_IN_FLIGHT, REDUNDANT_LEVELS, Level

from .filesystem import SharedBandwidth, Transfer
from .plan import Cadences, SizedJob
from .result import RunResult
from .retention import retire
from .survival import Stored

Events = Generator[Any, Any, None]


class Pipeline:
    """What is under way in the background, and what is stored.

    Args:
        file_system: that flushes go to.
        result: counts what is written.
        tell: called when something has ended that the job may wait for.

    Attributes:
        stored: checkpoints that are complete at some level.
        in_flight: checkpoints under way.
        staging_free: true unless one waits for its local part to be written.
    """

    def __init__(
        self,
        env: simpy.Environment,
        file_system: SharedBandwidth,
        cadences: Cadences,
        result: RunResult,
        tell: Callable[[], None],
    ) -> None:
        self._env, self._file_system, self._cadences, self._result, self._tell = (
            env,
            file_system,
            cadences,
            result,
            tell,
        )
        self._under_way: list[simpy.Process] = []
        self._protect = simpy.Resource(env)
        self._turns = simpy.Resource(env)
        self.stored: list[Stored] = []
        self.in_flight = 0
        self.staging_free = True

    @property
    def has_room(self) -> bool:
        """True if another checkpoint may begin."""
        return self.staging_free and self.in_flight < MOST_IN_FLIGHT

    def begin(self, world: SizedJob, stored: Stored, due: tuple[str, ...]) -> None:
        """A call has captured a state; it goes to these levels."""
        self.staging_free = False
        self.in_flight += 1
        self._under_way = [process for process in self._under_way if process.is_alive]
        self._add(self._complete(world, stored, due))

    def rebuild(self, world: SizedJob, stored: Stored, nodes: tuple[int, ...]) -> None:
        """Rebuild what the restored step lost of its levels on nodes, where it is now at home."""
        self._add(self._heal(world, stored, nodes))

    def stop(self) -> None:
        """The job has ended: what is under way does, too, with what is complete by then."""
        for process in self._under_way:
            if process.is_alive:
                process.interrupt()
        self._under_way, self.in_flight, self.staging_free = [], 0, True

    def _add(self, events: Events) -> simpy.Process:
        process = self._env.process(events)
        self._under_way.append(process)
        return process

    def _complete(self, world: SizedJob, stored: Stored, due: tuple[str, ...]) -> Events:
        """One checkpoint through its levels."""
        stages = world.stages
        flush = None
        try:
            if world.times.lazy:
                yield self._env.timeout(stages["capture"])
            if Level.PERSISTENT in due:
                flush = self._add(self._flush(world, stored, Level.LOCAL not in due))
            if Level.LOCAL in due:
                yield self._env.timeout(world.local_s)
                self._done(world, stored, Level.LOCAL)
                self._free_staging()
            redundant = [level for level in REDUNDANT_LEVELS if level in due and stages[level]]
            if redundant:
                with self._protect.request() as turn:
                    yield turn
                    for level in redundant:
                        yield self._env.timeout(stages[level])
                        self._done(world, stored, level)
            if flush is not None:
                yield flush
            if Level.LOCAL not in due:
                self._free_staging()
            self.in_flight -= 1
            self._tell()
        except simpy.Interrupt:
            pass

    def _flush(self, world: SizedJob, stored: Stored, from_memory: bool) -> Events:
        transfer: Transfer | None = None
        try:
            with self._turns.request() as turn:
                yield turn
                began = self._env.now
                if from_memory and world.stages["encode"]:
                    yield self._env.timeout(world.stages["encode"])
                transfer = self._file_system.begin(world.flushed_bytes, world.flush_rate)
                yield transfer.done
                transfer = None
                # Files have to be created, and the copy cannot be done before the file that it follows.
                least = world.flush_latency_s
                if not from_memory:
                    least = max(least, began + world.local_s - self._env.now)
                yield self._env.timeout(least)
                self._done(world, stored, Level.PERSISTENT)
        except simpy.Interrupt:
            if transfer is not None:
                self._file_system.give_up(transfer)

    def _done(self, world: SizedJob, stored: Stored, level: str) -> None:
        """A level is complete: count it, and let go what ``keep`` no longer wants."""
        result = self._result
        result.checkpoints[level] = result.checkpoints.get(level, 0) + 1
        result.nbytes[level] = result.nbytes.get(level, 0) + world.level_bytes[level]
        stored.levels.add(level)
        if stored not in self.stored:
            self.stored.append(stored)
        self.stored = retire(self.stored, self._cadences.keep)

    def _free_staging(self) -> None:
        if not self.staging_free:
            self.staging_free = True
            self._tell()

    def _heal(self, world: SizedJob, stored: Stored, nodes: tuple[int, ...]) -> Events:
        try:
            with self._protect.request() as turn:
                yield turn
                yield self._env.timeout(world.heal_s)
            stored.nodes, stored.lost = nodes, set()
            stored.levels.update(self._cadences.node_levels)
        except simpy.Interrupt:
            pass
