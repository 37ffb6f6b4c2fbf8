"""The costs of checkpoints besides time: node-hours and money, space, and the wear of drives.

All nodes of a job are paid for as long as it runs, including spare ones and those that wait for a repair.

A level keeps its newest steps (``keep``) while another one is written. The local level also keeps the steps of the
redundant levels, which are older ones if those levels are written less often
(:func:`deeppart_simulator.campaign.background.retire`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from deeppart.model import DEFAULT_KEEP, LEVELS, REDUNDANT_LEVELS, Level, show_bytes, show_seconds, show_share
from deeppart.plan.interval import MOST_EVERY

from .campaign.outcomes import Summary, show_number
from .campaign.plan import Cadences, Planned, SizedJob
from .machine.record import DAY_S, Machine
from .timing.stages import TORCH_SAVE, Job, Protection, by_node, times_of, torch_save_words

HOUR_S = 3600.0
#: Length of a month.
MONTH_DAYS = 30.0
USEFUL, SPARES = "useful training", "spare nodes"


@dataclass(frozen=True, slots=True)
class Item:
    """A line of a bill."""

    what: str  # use of the time
    node_hours: float  # of all nodes
    money: float | None  # in the machine's currency; None without a price


@dataclass(frozen=True, slots=True)
class Bill:
    """The bill of a run."""

    items: tuple[Item, ...]  # their sum is ``total``; the first is the useful time
    currency: str  # "" without a price

    @property
    def total(self) -> Item:
        """The sum of all items."""
        return self._sum("all", self.items)

    @property
    def lost(self) -> Item:
        """The sum of all items but useful training."""
        return self._sum("not useful", [item for item in self.items if item.what != USEFUL])

    def _sum(self, what: str, items: Sequence[Item]) -> Item:
        money = None if self.items[0].money is None else sum(each.money or 0.0 for each in items)
        return Item(what, sum(each.node_hours for each in items), money)

    def document(self) -> dict[str, Any]:
        """The bill for JSON; money is null without a price."""
        return {"currency": self.currency, "items": self.items, "not_useful": self.lost, "total": self.total}

    def row(self) -> dict[str, Any]:
        """The columns of the bill in a table."""
        lost = self.lost
        row = {"node_hours": self.total.node_hours, "lost_node_hours": lost.node_hours}
        return row | {"lost_money": lost.money, "currency": self.currency}


def item(machine: Machine, what: str, node_hours: float) -> Item:
    """The item for some node-hours."""
    price = machine.price.node_hour
    return Item(what, node_hours, None if math.isinf(price) else node_hours * price)


def bill(machine: Machine, nodes: int, seconds: float, shares: Mapping[str, float], spares: int = 0) -> Bill:
    """The bill of a run."""
    hours = nodes * seconds / HOUR_S
    items = [item(machine, what, share * hours) for what, share in shares.items()]
    items += [item(machine, SPARES, spares * seconds / HOUR_S)] if spares else []
    return Bill(tuple(items), machine.price.currency)


def missing(machine: Machine) -> list[str]:
    """Sentences about what a bill lacks, with the keys of the machine file that would add it."""
    priced = math.isfinite(machine.price.node_hour)
    return [] if priced else ["no money: [price] node_hour and currency are not in the machine file"]


def cells(each: Item, currency: str) -> list[str]:
    """Node-hours, and money if there is a price, as text."""
    return [show_number(each.node_hours), *([] if each.money is None else [f"{show_number(each.money)} {currency}"])]


# --- space ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Space:
    """The space that a job needs, and the available space."""

    steps: Mapping[str, int]  # level -> most steps at the same time
    node_bytes: Mapping[str, float]  # level on nodes -> bytes of these steps on the fullest node
    file_system_bytes: float  # bytes of the steps at the persistent level
    node_capacity: float  # node_capacity, file_system_capacity: bytes; infinity if the machine file lacks it
    file_system_capacity: float
    quota: bool  # true if the limit of the file system is a quota

    @property
    def on_node(self) -> float:
        """Bytes on the fullest node, of all levels."""
        return sum(self.node_bytes.values())

    @property
    def too_large(self) -> list[str]:
        """Sentences about what does not fit; none if everything fits or capacities are unknown."""
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


def steps_kept(every: Mapping[str, int]) -> dict[str, int]:
    """Level -> most steps at the same time, including the one being written."""
    on = {level: every[level] for level in LEVELS if 0 < every.get(level, 0) < MOST_EVERY}
    kept = {level: DEFAULT_KEEP[level] for level in on}
    found = {level: count + 1 for level, count in kept.items()}
    if Level.LOCAL in on:
        # Levels written by the same calls keep the same steps.
        by_calls = {on[level]: 0 for level in on}
        for level in (Level.LOCAL, *REDUNDANT_LEVELS):
            if level in on:
                by_calls[on[level]] = max(by_calls[on[level]], kept[level])
        found[Level.LOCAL] = sum(by_calls.values()) + 1
    return found


def space_of(world: SizedJob, every: Mapping[str, int]) -> Space:
    """The space of a job with a cadence."""
    machine, steps = world.job.machine, steps_kept(every)
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
    """Years until a node's drives have reached their endurance; infinity if that is unknown or nothing is written."""
    most = machine.local.endurance
    return most / node_daily_bytes / 365.25 if node_daily_bytes and math.isfinite(most) else math.inf


def drive_writes(machine: Machine, node_daily_bytes: float) -> float | None:
    """Drive writes per day of a node; None if the capacity is unknown."""
    return node_daily_bytes / machine.local.capacity if math.isfinite(machine.local.capacity) else None


def bandwidth_share(machine: Machine, drained_daily_bytes: float) -> float:
    """The fraction of the file system's write bandwidth that the job uses."""
    return drained_daily_bytes / (machine.persistent.write * DAY_S)


def space_document(
    machine: Machine, space: Space, node_daily_bytes: float, drained_daily_bytes: float
) -> dict[str, Any]:
    """Space and wear for JSON; null if the machine file lacks a number."""
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
    """Sentences about space and wear, with the keys of numbers that the machine file lacks."""
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
    if math.isinf(machine.local.endurance):
        return f"{line}; how long they last, the machine file does not say ([local] endurance)"
    lasts = f"{years:.3g} years" if years >= 1 else show_seconds(years * 365.25 * DAY_S)
    return f"{line}; they are worn after {lasts} of this"


# --- campaigns --------------------------------------------------------------------------------------------------------


#: A share of a summary -> its displayed name.
SHARE_WORDS = {
    "useful": USEFUL,
    "lost": "training lost",
    "blocked": "blocked by checkpoints",
    "waiting": "waiting for room",
    "slowed": "slowed by the background",
    "down": "down",
    "short of nodes": "waiting for nodes",
    "restoring": "restoring",
    "leaving": "saving before the end of a turn",
    "queued": "in the queue",
}
#: The time of missing nodes of an elastic job, which trains more slowly while they are repaired.
FEWER = "training on fewer nodes"
_ROUNDING = 1e-9


def bill_of_run(planned: Planned, cadences: Cadences, summary: Summary) -> Bill:
    """The mean bill of a campaign's runs; a queued job has no nodes."""
    shares = {words: summary.shares[name].mean for name, words in SHARE_WORDS.items() if name != "queued"}
    shares = {words: share for words, share in shares.items() if share or words != SHARE_WORDS["leaving"]}
    held = 1 - summary.shares["queued"].mean
    fewer = held - sum(shares.values())
    shares |= {FEWER: fewer} if fewer > _ROUNDING else {}
    shares = {words: share / held if held > 0 else 0.0 for words, share in shares.items()}
    return bill(planned.job.machine, planned.nodes, cadences.wall_s * held, shares, cadences.spares)


def space_of_run(planned: Planned, cadences: Cadences) -> Space:
    """The space of a campaign."""
    return space_of(planned.on(planned.nodes), cadences.every)


def daily_bytes(planned: Planned, cadences: Cadences, summary: Summary) -> tuple[float, float]:
    """Bytes written per day: to each node's storage on average, and to the file system."""
    days = cadences.wall_s / DAY_S
    written = {level: estimate.mean / days for level, estimate in summary.nbytes.items()}
    drained = written.pop(Level.PERSISTENT, 0.0)
    return sum(written.values()) / planned.nodes, drained


def spending_lines(planned: Planned, cadences: Cadences, summary: Summary) -> list[str]:
    """Sentences about the space and wear of a campaign, and about what its bill lacks."""
    machine, space = planned.job.machine, space_of_run(planned, cadences)
    lines = [f"no room: {line}; a job would end there" for line in space.too_large]
    return [*lines, *space_lines(machine, space, *daily_bytes(planned, cadences, summary)), *missing(machine)]


# --- blocked time -----------------------------------------------------------------------------------------------------


#: Default rows of the table: seconds for which a call blocks, and seconds of training between two calls.
BLOCKED_S = (0.01, 0.1, 1.0, 10.0, 100.0)
PERIODS_S = (60.0, 600.0, 3600.0)


@dataclass(frozen=True, slots=True)
class Row:
    """The cost of calls that block training for some time."""

    period_s: float  # training between two calls
    blocked_s: float  # of each call
    way: str  # the way to checkpoint that blocks for this long; "" for a time given by the user
    lost: float  # fraction of the time in which training waits
    cost: Item  # of the lost time


def ways_of(job: Job) -> dict[str, float]:
    """Way to checkpoint -> seconds that a call blocks. For DCP a lower bound, without its serialization."""
    straight = replace(job, protection=Protection(local=False, partner=False), compression="none", capture="eager")
    jobs = (job, replace(straight, strategy="whole"), replace(straight, strategy=TORCH_SAVE))
    deeppart, whole, saved = (times_of(each, each.shares()) for each in jobs)
    return {
        "deeppart": deeppart.blocked_s,
        "DCP-like, in the background": whole.blocked_s,
        "DCP-like, waited for": whole.serial_s(),
        torch_save_words(job.state.layout): saved.blocked_s,
    }


def costs_of_blocking(
    machine: Machine,
    nodes: int,
    periods_s: Sequence[float],
    blocked_s: Sequence[float],
    ways: Mapping[str, float],
    days: float,
) -> list[Row]:
    """The rows of the table: for each period, the given times and those of the ways to checkpoint."""
    asked, found = [("", seconds) for seconds in dict.fromkeys(blocked_s)], []
    for period_s in sorted(set(periods_s)):
        for way, seconds in sorted([*asked, *ways.items()], key=itemgetter(1)):
            lost = seconds / (period_s + seconds)
            cost = item(machine, way, lost * nodes * days * DAY_S / HOUR_S)
            found.append(Row(period_s, seconds, way, lost, cost))
    return found
