"""A job as campaigns use it: its cadence, and its times and placement, computed once for each number of nodes.

The library knows one failure domain per node (a switch, a rack). If nodes fail in several kinds of groups, copies and
parity are spread over the kind that leaves the fewest failures unsurvived.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from deeppart.model import LEVELS, REDUNDANT_LEVELS, Level, show_seconds

from ..machine.record import Failures, Restart
from ..timing.restores import restore_s
from ..timing.stages import FloatArray, Job, Protection, Times, by_node, metadata_s, times_of
from ..workload.holding import Shares
from .failures import Scheduling, group_count, nodes_of_group, rates_per_s, repair_after_s
from .survival import Placement, placement


@dataclass(frozen=True, slots=True)
class Cadences:
    """The cadence of a job's checkpoints, its length, and its reaction to lost nodes."""

    period_s: float  # training from the end of one call to the next
    every: Mapping[str, int]  # level -> n if every n-th call writes it; 0 or left out for never
    wall_s: float  # length of the run
    spares: int = 0  # spare nodes
    #: true if training continues with fewer nodes when no spare is ready; otherwise it waits for a repair
    elastic: bool = False
    scheduling: Scheduling = field(default_factory=Scheduling)

    def due(self, sequence: int) -> tuple[str, ...]:
        """The levels that call number ``sequence`` writes, counted as in the library: the first call writes all."""
        return tuple(level for level in LEVELS if self.every.get(level) and sequence % self.every[level] == 0)

    @property
    def node_levels(self) -> tuple[str, ...]:
        """The levels on nodes that are in use."""
        return tuple(level for level in LEVELS[:3] if self.every.get(level))

    def of(self, job: Job) -> Job:
        """A job without the levels that are never written."""
        protection = job.protection
        return replace(
            job,
            protection=replace(
                protection,
                local=bool(self.every.get(Level.LOCAL)),
                partner=bool(self.every.get(Level.PARTNER)),
                parity_group=protection.parity_group if self.every.get(Level.PARITY) else 0,
                persistent=bool(self.every.get(Level.PERSISTENT)),
            ),
        )

    def __str__(self) -> str:
        every = ", ".join(f"{level} at every {_nth(count)}" for level, count in self.every.items() if count)
        spares = f"; {self.spares} spare node{'s' * (self.spares > 1)}" if self.spares else ""
        return f"a call after every {show_seconds(self.period_s)} of training; {every}{spares}"


def _nth(count: int) -> str:
    if count == 1:
        return "call"
    ending = "th" if count % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count:,}{ending} call"


@dataclass(frozen=True, slots=True, eq=False)
class SizedJob:
    """A job on some number of nodes."""

    job: Job  # job, shares, times: for this number of nodes
    shares: Shares
    times: Times
    speed: float  # of training, 1 with all nodes
    stages: Mapping[str, float]  # stage -> seconds
    blocked_s: float  # time for which a call blocks training
    encoded_s: float  # from the copy until the last chunk is encoded; 0 without encoding
    local_s: float  # encoding and writing the local part
    flushed_bytes: float  # bytes of one checkpoint on the file system
    flush_rate: float  # most bytes per second from the job's nodes to the file system
    flush_latency_s: float  # creating files there, and whatever else follows the last byte
    level_bytes: Mapping[str, int]  # level -> bytes that one checkpoint writes
    heal_s: float  # rebuilding the lost files of a step
    _restores: dict[tuple[object, ...], float] = field(default_factory=dict)

    def redundant(self, due: tuple[str, ...]) -> list[str]:
        """Those of the due levels that protect local parts, in the order in which they complete."""
        return [level for level in REDUNDANT_LEVELS if level in due and self.stages[level]]

    def restore_s(self, parts: Mapping[str, int], saved_nodes: int) -> float:
        """Seconds for a restore. ``parts``: level -> number of nodes whose parts come from it."""
        key = (saved_nodes, *sorted(parts.items()))
        if key not in self._restores:
            self._restores[key] = restore_s(self.job, self.shares, dict(parts), saved_nodes)
        return self._restores[key]


class Planned:
    """A job that may run on fewer nodes than it was planned for."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.nodes = job.nodes
        #: Number of nodes in a failure domain, such as a switch; copies are kept in other domains.
        self.domain_nodes = domain_nodes(job.machine.failures, job.nodes, job.protection)
        self._worlds: dict[int, SizedJob] = {}

    def restarting(self, restart: Restart) -> Planned:
        """The same job with other restart times, without partitioning it again."""
        other = copy.copy(self)
        other.job = replace(self.job, machine=replace(self.job.machine, restart=restart))
        return other

    def on(self, nodes: int) -> SizedJob:
        """The job on this number of nodes (cached)."""
        if nodes not in self._worlds:
            self._worlds[nodes] = self._make(nodes)
        return self._worlds[nodes]

    def usable(self, nodes: int) -> int:
        """The largest number of nodes up to ``nodes`` that fits the layout and the parity group; 0 if none does."""
        counts = range(min(nodes, self.nodes), max(0, self.job.protection.parity_group - 1), -1)
        fits, each = self.job.state.layout.fits, self.job.ranks_per_node
        return next((count for count in counts if fits(count * each)), 0)

    def _make(self, nodes: int) -> SizedJob:
        ranks = self.job.ranks if nodes == self.nodes else nodes * self.job.ranks_per_node
        job = replace(self.job, ranks=ranks)
        shares = job.shares()
        times = times_of(job, shares)
        stages = times.stages()
        written = float(times.encoded.sum())
        persistent = job.machine.persistent
        node_rate = min(persistent.node_write, persistent.rank_write * job.ranks_per_node, job.flush_bandwidth)
        group, tolerate = job.protection.parity_group, job.protection.parity_tolerate
        bytes_of = dict.fromkeys(LEVELS, written)
        bytes_of[Level.PARITY] = written * tolerate / (group - tolerate) if group else 0.0
        return SizedJob(
            job=job,
            shares=shares,
            times=times,
            speed=ranks / self.job.ranks,
            stages=stages,
            blocked_s=times.blocked_s,
            encoded_s=float(np.maximum(times.encode, times.cores).max()),
            local_s=float(times.stored.max()),
            flushed_bytes=written,
            flush_rate=_balanced_rate(times.encoded, job.ranks_per_node, node_rate),
            flush_latency_s=max(
                metadata_s(job, by_node(times.encoded, job.ranks_per_node)), float(times.persistent_end.max())
            ),
            level_bytes={level: round(count) for level, count in bytes_of.items()},
            heal_s=stages[Level.LOCAL] + stages[Level.PARTNER] + stages[Level.PARITY],
        )


def usual_spares(planned: Planned) -> int:
    """The number of spare nodes with which a job rarely waits for a repair, if the machine has them: the mean number
    under repair plus three standard deviations of a Poisson distribution.
    """
    job = planned.job
    rates = rates_per_s(job)
    kinds = job.machine.failures.groups
    under_repair = rates["node"] * job.machine.restart.repair + sum(
        rates[name] * min(kind.nodes, planned.nodes) * repair_after_s(job.machine, name) for name, kind in kinds.items()
    )
    wanted = math.ceil(under_repair + 3 * math.sqrt(under_repair)) if under_repair else 0
    left = job.machine.nodes - planned.nodes
    return min(wanted, left) if left >= 0 else wanted


def _balanced_rate(encoded: FloatArray, ranks_per_node: int, node_rate: float) -> float:
    """Bytes per second of all nodes together, until the node with the most bytes has finished."""
    per_node = by_node(encoded, ranks_per_node).sum(axis=1)
    most = float(per_node.max())
    return float(per_node.sum()) * node_rate / most if most else node_rate


# --- groups that are kept apart ---------------------------------------------------------------------------------------


def domain_nodes(failures: Failures, nodes: int, protection: Protection) -> int:
    """The size of the groups over which copies and parity are spread; 0 if nodes do not fail in groups."""
    sizes = sorted({kind.nodes for kind in failures.groups.values() if math.isfinite(kind.mtbf)})
    if len(sizes) < 2 or not (protection.partner or protection.parity_group):
        return sizes[0] if sizes else 0
    everyone = tuple(range(nodes))

    def lost_per_s(size: int) -> float:
        places = placement(everyone, protection, size)
        return sum(_lost_groups(kind.nodes, nodes, places, protection) / kind.mtbf for kind in failures.groups.values())

    return min(sizes, key=lost_per_s)


def _lost_groups(size: int, nodes: int, places: Placement, protection: Protection) -> int:
    """The number of groups of ``size`` nodes whose loss neither copies nor parity survives."""
    return sum(
        not _survives(nodes_of_group(group, nodes, size), places, protection)
        for group in range(group_count(nodes, size))
    )


def _survives(struck: tuple[int, ...], places: Placement, protection: Protection) -> bool:
    gone = set(struck)
    if places.partner and all(places.partner[place] not in gone for place in struck):
        return True
    if not places.group:
        return False
    lost = Counter(places.group[place] for place in struck)
    return max(lost.values()) <= protection.parity_tolerate


#: Most events in the runs of one campaign: these take minutes to hours.
MOST_EVENTS = 3e7


def events(planned: Planned, cadences: Cadences, failures: int | None = None) -> float:
    """The approximate number of events in one run: calls, failures (if not given, expected ones) and other ends."""
    found = cadences.wall_s / (cadences.period_s + planned.on(planned.nodes).blocked_s)
    rates = rates_per_s(planned.job)
    found += cadences.wall_s * sum(rates.values()) if failures is None else failures
    return found + cadences.wall_s * cadences.scheduling.ends_per_s()
