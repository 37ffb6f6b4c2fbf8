"""The space that checkpoints take: bytes kept at each level, what storage holds, and how long drives last.

A level keeps its newest steps (``keep``) while another one is written. The local level also keeps what the redundant
levels protect: where those are written more rarely, their newest steps are older ones
(:func:`deeppart_simulator.campaign.background.retire`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deeppart.model import DEFAULT_KEEP, LEVELS, REDUNDANT_LEVELS, Level, show_bytes, show_seconds, show_share
from deeppart.plan.multiples import MOST_EVERY

from ..campaign.plan import SizedJob
from ..machine.record import DAY_S, Machine
from ..timing.stages import by_node

#: Of a level that keeps all steps, so many are counted.
_ALL = 1_000_000


@dataclass(frozen=True, slots=True)
class Space:
    """What a job keeps, and what there is for it."""

    steps: Mapping[str, int]  # level -> most steps on it at a time
    node_bytes: Mapping[str, float]  # level -> bytes of these on the node that has most
    file_system_bytes: float  # at the persistent level, of all
    node_capacity: float  # node_capacity, file_system_capacity: bytes; infinity where the machine file does not say
    file_system_capacity: float
    quota: bool  # true if a quota is what limits the file system

    @property
    def on_node(self) -> float:
        """Bytes on the node that has most, all levels together."""
        return sum(self.node_bytes.values())

    @property
    def too_large(self) -> list[str]:
        """Sentences that say what does not fit; none if all does, or if nobody knows."""
        found = []
        if self.on_node > self.node_capacity:
            parts = ", ".join(f"{self.steps[level]} steps of {level}" for level in self.node_bytes)
            found.append(
                f"{show_bytes(self.on_node)} are kept on a node ({parts}), whose storage holds "
                f"{show_bytes(self.node_capacity)} ([local] capacity)"
            )
        if self.file_system_bytes > self.file_system_capacity:
            key = "quota" if self.quota else "capacity"
            found.append(
                f"{show_bytes(self.file_system_bytes)} are kept on the file system ({self.steps[Level.PERSISTENT]} "
                f"steps), where {show_bytes(self.file_system_capacity)} are to be had ([persistent] {key})"
            )
        return found


def steps_kept(every: Mapping[str, int], keep: Mapping[str, int] = DEFAULT_KEEP) -> dict[str, int]:
    """Level -> most steps on it at a time, the one that is being written among them."""
    on = {level: every[level] for level in LEVELS if 0 < every.get(level, 0) < MOST_EVERY}
    kept = {level: keep[level] or _ALL for level in on}
    found = {level: count + 1 for level, count in kept.items()}
    if Level.LOCAL in on:
        # Levels that are written at the same calls keep the same steps.
        by_calls = {on[level]: 0 for level in on}
        for level in (Level.LOCAL, *REDUNDANT_LEVELS):
            if level in on:
                by_calls[on[level]] = max(by_calls[on[level]], kept[level])
        found[Level.LOCAL] = sum(by_calls.values()) + 1
    return found


def space_of(world: SizedJob, every: Mapping[str, int], keep: Mapping[str, int] = DEFAULT_KEEP) -> Space:
    """The space of a job with a cadence."""
    machine, steps = world.job.machine, steps_kept(every, keep)
    per_node = by_node(world.times.encoded, world.job.ranks_per_node).sum(axis=1)
    most = float(per_node.max()) / max(1.0, float(per_node.sum()))
    on_node = {
        level: count * world.level_bytes[level] * most for level, count in steps.items() if level != Level.PERSISTENT
    }
    drained = steps.get(Level.PERSISTENT, 0) * world.level_bytes[Level.PERSISTENT]
    storage = machine.persistent
    limit = min(storage.capacity, storage.quota)
    return Space(steps, on_node, drained, machine.local.capacity, limit, storage.quota < storage.capacity)


def drive_years(machine: Machine, node_daily_bytes: float) -> float:
    """Years until a node's drives have taken what they are promised to; infinity where that is not said, or never."""
    most = machine.local.most_written
    return most / node_daily_bytes / 365.25 if node_daily_bytes and math.isfinite(most) else math.inf


def drive_writes(machine: Machine, node_daily_bytes: float) -> float | None:
    """How often a day all of a node's drives are written; None where their capacity is not said."""
    return node_daily_bytes / machine.local.capacity if math.isfinite(machine.local.capacity) else None


def bandwidth_share(machine: Machine, drained_daily_bytes: float) -> float:
    """The share of all that the file system can write."""
    return drained_daily_bytes / (machine.persistent.write * DAY_S)


def space_document(
    machine: Machine, space: Space, node_daily_bytes: float, drained_daily_bytes: float
) -> dict[str, Any]:
    """What is kept and written, for JSON; null where the machine file does not say what would be needed."""
    return {
        "steps": space.steps,
        "node_bytes": space.node_bytes,
        "node_capacity": space.node_capacity,
        "file_system_bytes": space.file_system_bytes,
        "file_system_capacity": space.file_system_capacity,
        "file_system_bandwidth_share": bandwidth_share(machine, drained_daily_bytes),
        "drive_writes_per_day": drive_writes(machine, node_daily_bytes),
        "drive_years": drive_years(machine, node_daily_bytes),
        "too_large": space.too_large,
    }


def space_lines(machine: Machine, space: Space, node_daily_bytes: float, drained_daily_bytes: float) -> Iterator[str]:
    """What is kept and written, in sentences, with the keys of what the machine file does not say."""
    if space.node_bytes:
        line = f"kept on the node with most: {show_bytes(space.on_node)}" + _steps(space, LEVELS[:-1])
        yield line + _of(space.on_node, space.node_capacity, "its storage", "[local] capacity")
        yield _wear(machine, node_daily_bytes)
    if space.file_system_bytes:
        line = f"kept on the file system: {show_bytes(space.file_system_bytes)}" + _steps(space, (Level.PERSISTENT,))
        whole = "the quota" if space.quota else "its capacity"
        line += _of(space.file_system_bytes, space.file_system_capacity, whole, "[persistent] capacity, quota")
        share = bandwidth_share(machine, drained_daily_bytes)
        yield f"{line}; {show_share(share)} of all that it can write goes to this job"


def _steps(space: Space, levels: tuple[str, ...]) -> str:
    return f" (steps: {', '.join(f'{space.steps[level]} of {level}' for level in levels if level in space.steps)})"


def _of(nbytes: float, capacity: float, what: str, key: str) -> str:
    if math.isinf(capacity):
        return f"; how much there is, the machine file does not say ({key})"
    return f", {show_share(nbytes / capacity)} of {what}, {show_bytes(capacity)}"


def _wear(machine: Machine, node_daily_bytes: float) -> str:
    times = drive_writes(machine, node_daily_bytes)
    line = f"each node's drives take {show_bytes(node_daily_bytes)} a day"
    if times is not None:
        line += f", {times:.2g} times their capacity"
    years = drive_years(machine, node_daily_bytes)
    if math.isinf(machine.local.most_written):
        return f"{line}; how long they last, the machine file does not say ([local] endurance, drive_writes_per_day)"
    lasts = f"{years:.3g} years" if years >= 1 else show_seconds(years * 365.25 * DAY_S)
    return f"{line}; they are worn after {lasts} of this"
