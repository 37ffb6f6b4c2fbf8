"""Checkpoints in the background of a campaign: their levels, the flush to a shared file system, and retention."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import simpy

from deeppart.model import DEFAULT_KEEP, MOST_IN_FLIGHT, REDUNDANT_LEVELS, Level

from .outcomes import RunResult
from .plan import Cadences, SizedJob
from .survival import Stored

Events = Generator[Any, Any, None]


class Background:
    """The checkpoints of a run that are in progress, and those that are complete at some level."""

    def __init__(self, env: simpy.Environment, cadences: Cadences, result: RunResult, bytes_per_s: float) -> None:
        self.file_system = FileSystem(env, bytes_per_s)
        self.stored: list[Stored] = []  # complete at some level, in any order
        self._env, self._cadences, self._result = env, cadences, result
        self._processes: list[simpy.Process] = []
        self._in_flight = 0
        self._staging_free = True
        self._change, self._over = env.event(), env.event()
        self._protect = simpy.Resource(env)
        self._turns = simpy.Resource(env)

    @property
    def is_busy(self) -> bool:
        """True while a checkpoint is in progress, which slows training down."""
        return self._in_flight > 0

    @property
    def has_room(self) -> bool:
        """True if the next checkpoint may begin."""
        return self._staging_free and self._in_flight < MOST_IN_FLIGHT

    @property
    def is_idle(self) -> bool:
        """True if no checkpoint is in progress and nothing is being rebuilt."""
        return not self._in_flight and not any(process.is_alive for process in self._processes)

    def change(self) -> simpy.Event:
        """An event that happens when :attr:`has_room` may have changed."""
        self._change = self._env.event()
        return self._change

    def over(self) -> simpy.Event:
        """An event that happens when the last checkpoint in progress has finished."""
        self._over = self._env.event()
        return self._over

    def begin(self, world: SizedJob, stored: Stored, due: tuple[str, ...]) -> None:
        """Run the background of a checkpoint whose call has returned."""
        self._staging_free = False
        self._in_flight += 1
        self._start(self._complete(world, stored, due))

    def heal(self, world: SizedJob, stored: Stored, nodes: Sequence[int]) -> None:
        """Rebuild a restored step's lost files on nodes, if there are copies or parity."""
        if not set(REDUNDANT_LEVELS).isdisjoint(self._cadences.node_levels):
            self._start(self._heal(world, stored, tuple(nodes)))

    def end(self) -> None:
        """Drop what is in progress: the job's processes have ended."""
        for process in self._processes:
            if process.is_alive:
                process.interrupt()
        self._processes, self._in_flight, self._staging_free = [], 0, True

    def add(self, world: SizedJob, completed: Iterable[Stored]) -> None:
        """Add checkpoints that were completed elsewhere, by ascending number."""
        for stored in completed:
            if stored.levels:
                self.stored.append(stored)
            for level in stored.levels:
                self._count(world, level)
        self.stored = retire(self.stored)

    def forget_after(self, sequence: int) -> None:
        """Drop the checkpoints after ``sequence``, which the library removes after it has restored that one."""
        self.stored = [each for each in self.stored if each.sequence <= sequence]

    def _start(self, events: Events) -> None:
        self._processes = [process for process in self._processes if process.is_alive]
        self._processes.append(self._env.process(events))

    def _complete(self, world: SizedJob, stored: Stored, due: tuple[str, ...]) -> Events:
        """Take one checkpoint through its levels. A failure of the job interrupts it; completed levels stay."""
        env, stages = self._env, world.stages
        flush = None
        try:
            if world.times.lazy:
                yield env.timeout(stages["capture"])
            redundant = world.redundant(due)
            ends_s = 0.0
            if Level.PERSISTENT in due:
                # Transfers to other nodes and to the file system share the job's bandwidth limit.
                ends_s = env.now + world.times.limited if redundant else 0.0
                flush = env.process(self._flush(world, stored, Level.LOCAL not in due, ends_s))
                self._processes.append(flush)
            if Level.LOCAL in due:
                yield env.timeout(world.local_s)
                self._done(world, stored, Level.LOCAL)
                self._free_staging()
            if redundant:
                with self._protect.request() as turn:
                    yield turn
                    for level in redundant:
                        least = ends_s - env.now if level == redundant[-1] else 0.0
                        yield env.timeout(max(stages[level], least))
                        self._done(world, stored, level)
            if flush is not None:
                yield flush
            if Level.LOCAL not in due:
                self._free_staging()
            self._in_flight -= 1
            trigger(self._change)
            if not self._in_flight:
                trigger(self._over)
        except simpy.Interrupt:
            pass

    def _flush(self, world: SizedJob, stored: Stored, from_memory: bool, ends_s: float) -> Events:
        env, flushing = self._env, False
        try:
            began = env.now  # encoding and the local file begin now, even if an earlier flush is still in progress
            with self._turns.request() as turn:
                yield turn
                flushing = True
                yield self.file_system.begin(world.flushed_bytes, world.flush_rate)
                flushing = False
                # The flush cannot end before the last chunk is encoded, nor before the local file that it copies.
                least = max(0.0, began + world.encoded_s - env.now) + world.flush_latency_s
                least = max(least, ends_s - env.now)
                if not from_memory:
                    least = max(least, began + world.local_s + world.times.commit - env.now)
                yield env.timeout(least)
                self._done(world, stored, Level.PERSISTENT)
        except simpy.Interrupt:
            if flushing:
                self.file_system.give_up()

    def _heal(self, world: SizedJob, stored: Stored, nodes: tuple[int, ...]) -> Events:
        try:
            with self._protect.request() as turn:
                yield turn
                yield self._env.timeout(world.heal_s)
            stored.nodes, stored.lost = nodes, set()
            stored.levels.update(self._cadences.node_levels)
        except simpy.Interrupt:
            pass

    def _done(self, world: SizedJob, stored: Stored, level: str) -> None:
        """Record that a level is complete, and retire what ``keep`` no longer covers."""
        self._count(world, level)
        stored.levels.add(level)
        if stored not in self.stored:
            self.stored.append(stored)
        self.stored = retire(self.stored)

    def _count(self, world: SizedJob, level: str) -> None:
        result = self._result
        result.checkpoints[level] = result.checkpoints.get(level, 0) + 1
        result.nbytes[level] = result.nbytes.get(level, 0) + world.level_bytes[level]

    def _free_staging(self) -> None:
        if not self._staging_free:
            self._staging_free = True
            trigger(self._change)


def trigger(event: simpy.Event) -> None:
    """Trigger an event, unless it has been triggered already."""
    if not event.triggered:
        event.succeed()


# --- what stays on each level -----------------------------------------------------------------------------------------


#: The local level keeps a checkpoint while one of the redundant levels does, so it comes after these.
_BEFORE_LOCAL = (*REDUNDANT_LEVELS, Level.PERSISTENT)
_sequence = attrgetter("sequence")


def retire(stored: Sequence[Stored], keep: Mapping[str, int] = DEFAULT_KEEP) -> list[Stored]:
    """Remove from each level all but its newest ``keep`` checkpoints."""
    on = dict.fromkeys(keep, 0)
    # In one pass, newest first: this is called whenever a level is complete.
    for each in sorted(stored, key=_sequence, reverse=True):
        levels = each.levels
        for level in _BEFORE_LOCAL:
            if level in levels:
                on[level] += 1
                if 0 < keep[level] < on[level]:
                    levels.discard(level)
        if Level.LOCAL in levels:
            on[Level.LOCAL] += 1
            # The local level also keeps what the redundant levels keep.
            if 0 < keep[Level.LOCAL] < on[Level.LOCAL] and levels.isdisjoint(REDUNDANT_LEVELS):
                levels.discard(Level.LOCAL)
    return [each for each in stored if each.levels]


# --- the file system --------------------------------------------------------------------------------------------------


class FileSystem:
    """A file system shared with other jobs. Flushes one checkpoint at a time, as fast as job and file system allow."""

    def __init__(self, env: simpy.Environment, bytes_per_s: float) -> None:
        self._env, self._capacity = env, bytes_per_s
        self._done: simpy.Event | None = None  # ends the transfer in progress
        self._left = self._most = self._rate = self._since = 0.0
        self._alarm = 0

    def begin(self, nbytes: float, most: float) -> simpy.Event:
        """Begin a transfer at ``most`` bytes per second or less. Returns the event of its end."""
        self._done = self._env.event()
        self._left, self._most, self._since = nbytes, most, self._env.now
        self._share()
        return self._done

    def give_up(self) -> None:
        """Abort the transfer in progress, if there is one."""
        self._done = None
        self._alarm += 1

    def set_capacity(self, bytes_per_s: float) -> None:
        """Change the available bandwidth."""
        self._capacity = bytes_per_s
        if self._done is not None:
            self._left -= self._rate * (self._env.now - self._since)
            self._since = self._env.now
            self._share()

    def _share(self) -> None:
        self._rate = min(self._most, self._capacity)
        self._alarm += 1
        self._env.process(self._wake(max(0.0, self._left) / self._rate, self._alarm))

    def _wake(self, delay_s: float, alarm: int) -> Generator[Any, Any, None]:
        yield self._env.timeout(delay_s)
        if alarm == self._alarm and self._done is not None:  # otherwise the rate has changed since
            self._done.succeed()
            self._done = None


def bursts(
    env: simpy.Environment,
    file_system: FileSystem,
    bytes_per_s: float,
    share: float,
    length_s: float,
    random: np.random.Generator,
) -> Generator[Any, Any, None]:
    """Simulate other jobs, which take ``share`` of the bandwidth on average: in bursts of ``length_s`` on average, half
    of the bandwidth, or ``share`` if that is more.
    """
    if share <= 0 or math.isinf(bytes_per_s):
        return
    taken = max(0.5, share)
    quiet_s = length_s * (taken - share) / share
    while True:
        if quiet_s > 0:
            yield env.timeout(float(random.exponential(quiet_s)))
        file_system.set_capacity(bytes_per_s * (1 - taken))
        yield env.timeout(float(random.exponential(length_s)))
        file_system.set_capacity(bytes_per_s)
