"""Failures, random or from a trace, the scheduler, and the time that a restart takes.

A failure class is a set of things that die together: a process (its node's storage survives), a node, a group of nodes
(a switch or a rack), or everything. Each class has one stream of failures, exponential or Weibull, with the summed rate
of all processes, nodes or groups of the job; each failure strikes a random one of them. With a trace, the job's node k
is the k-th node by the numbers in the names.

A scheduler ends a job at its time limit or preempts it, and may give notice (``--signal`` of Slurm). With notice the
job makes a checkpoint at all levels and leaves when that is complete, or is ended with what is complete by then. It
then waits in a queue for other nodes, which store nothing of it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deeppart.errors import ConfigError

from ..machine.record import DAY_S, PIECES, WAYS, Failures, Machine, Restart
from ..timing.stages import Job
from ..traces.read import read_trace
from ..traces.record import PREEMPTION, TIME_LIMIT, Event


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure."""

    at_s: float  # time since the start of the job
    kind: str  # one of :func:`classes`, or, from a trace, of FAILURES
    nodes: tuple[int, ...]  # struck nodes; for a process, its node, whose storage survives


def rates_per_s(job: Job) -> dict[str, float]:
    """Failure class -> failures of the job per second."""
    failures = job.machine.failures
    groups = {name: group_count(job.nodes, kind.nodes) / kind.mtbf for name, kind in failures.groups.items()}
    return {
        "process": job.ranks / failures.process,
        "node": job.nodes / failures.node,
        **groups,
        "system": 1 / failures.system,
    }


def need_failures(job: Job) -> None:
    """Raise ConfigError if nothing ever fails: there is no best cadence then."""
    if not any(rates_per_s(job).values()):
        raise ConfigError(
            "there is no best cadence without failures: each checkpoint is one too many",
            expected="a machine with a mean time between failures: of a process, a node, a group, or the system",
            found=f"{job.machine.name} never fails ([failures] and [groups] of its file)",
            where="--machine",
            todo='give one of them, such as node = "5 years"',
        )


def classes(failures: Failures) -> tuple[str, ...]:
    """The failure classes of a machine, from the smallest to the largest."""
    return ("process", "node", *failures.groups, "system")


def struck_nodes(failures: Failures, kind: str) -> int:
    """The number of nodes that a failure of a class strikes; not for "system"."""
    return failures.groups[kind].nodes if kind in failures.groups else 1


def drawn(job: Job, random: np.random.Generator) -> Iterator[Failure]:
    """Random failures, ordered by time, without end; none if no class has a rate above 0."""
    streams = []
    for kind, rate in rates_per_s(job).items():
        if rate > 0:
            (child,) = random.spawn(1)
            streams.append(_stream(kind, rate, job, child))
    yield from heapq.merge(*streams, key=lambda failure: failure.at_s)


def _stream(kind: str, rate: float, job: Job, random: np.random.Generator) -> Iterator[Failure]:
    """Random failures of one class. The Weibull distribution is scaled to a mean of 1 / rate."""
    shape = job.machine.failures.shape
    scale = 1 / (rate * math.gamma(1 + 1 / shape))
    at_s = 0.0
    while True:
        at_s += scale * float(random.weibull(shape))
        yield Failure(at_s, kind, _struck(kind, job, random))


def _struck(kind: str, job: Job, random: np.random.Generator) -> tuple[int, ...]:
    if kind == "system":
        return tuple(range(job.nodes))
    if kind in job.machine.failures.groups:
        width = struck_nodes(job.machine.failures, kind)
        return nodes_of_group(int(random.integers(group_count(job.nodes, width))), job.nodes, width)
    return (int(random.integers(job.nodes)),)


def repair_after_s(machine: Machine, kind: str) -> float:
    """Seconds until nodes struck by a failure of a class are repaired."""
    group = machine.failures.groups.get(kind)
    return machine.restart.repair if group is None or math.isinf(group.repair) else group.repair


def group_count(nodes: int, group_nodes: int) -> int:
    """The number of groups of ``group_nodes`` nodes; the last group may be smaller."""
    return -(-nodes // group_nodes)


def nodes_of_group(group: int, nodes: int, group_nodes: int) -> tuple[int, ...]:
    """The nodes of one such group."""
    first = group * group_nodes
    return tuple(range(first, min(first + group_nodes, nodes)))


# --- from a trace -----------------------------------------------------------------------------------------------------


def failures_from(path: Path, job: Job, wall_s: float | None = None) -> tuple[Failure, ...]:
    """The failures of a job that runs from the beginning of a trace."""
    trace = read_trace(path, nodes=job.nodes)
    if job.nodes > len(trace.names):
        raise ConfigError(
            "the job has more nodes than the trace tells of",
            expected=f"a job of at most {len(trace.names):,} nodes",
            found=f"{job.nodes:,} nodes",
            where=f"--trace {path}",
            todo="take fewer --ranks",
        )
    if wall_s is not None and 0 < trace.seconds < wall_s:
        raise ConfigError(
            "the run is longer than the trace",
            expected=f"--days of at most {math.floor(trace.seconds / DAY_S * 1e4) / 1e4:.10g}",
            found=f"{wall_s / DAY_S:.6g} days",
            where=f"--trace {path}",
            todo="take fewer --days",
        )
    place_of = {name: place for place, name in enumerate(trace.names[: job.nodes])}
    turns = 0
    found = []
    for event in trace.events:
        unsure = event.kind in ("node", "process") and len(event.nodes) != 1
        places = _places(event, place_of, job.nodes, turns)
        turns += unsure
        if places is not None:
            found.append(Failure(event.at_s, event.kind, places))
    return tuple(found)


def _places(event: Event, place_of: dict[str, int], count: int, turns: int) -> tuple[int, ...] | None:
    """The places of the job's nodes that an event struck; None if it did not strike the job."""
    everyone, names = tuple(range(count)), event.nodes
    if event.kind == TIME_LIMIT:
        return None  # the simulated job has its own limit
    if event.kind == "system" or (event.kind == PREEMPTION and not names):
        return everyone
    if event.kind in ("node", "process") and len(names) != 1:
        if not names:  # a record of a job's own runs: an unknown node of the job
            return (turns % count,)
        names = (names[turns % len(names)],)
    places = tuple(sorted(place_of[name] for name in names if name in place_of))
    return (everyone if event.kind == PREEMPTION else places) if places else None


# --- schedulers -------------------------------------------------------------------------------------------------------


ENDS = (PREEMPTION, TIME_LIMIT)


@dataclass(frozen=True, slots=True)
class Waits:
    """Times that a job waits in the queue."""

    mean_s: float = 0.0
    exponential: bool = False  # true if they are distributed exponentially; otherwise constant
    seen: tuple[float, ...] = ()  # times from a trace to draw from instead, if any

    @property
    def random(self) -> bool:
        """True if the times vary."""
        return self.exponential or len(set(self.seen)) > 1

    def one_s(self, random: np.random.Generator) -> float:
        """Draw one time."""
        if self.seen:
            return self.seen[int(random.integers(len(self.seen)))]
        return float(random.exponential(self.mean_s)) if self.exponential else self.mean_s


@dataclass(frozen=True, slots=True)
class Scheduling:
    """The behavior of the scheduler."""

    limit_s: float = math.inf  # time limit of each turn of the job
    preemption_s: float = math.inf  # mean time until the job is preempted; exponential
    notice_s: float = 0.0  # notice before either
    waits: Waits = Waits()  # in the queue

    @property
    def random(self) -> bool:
        """True if the scheduler acts at random."""
        return math.isfinite(self.preemption_s) or self.waits.random

    def ends_per_s(self) -> float:
        """Approximate rate at which the scheduler ends the job."""
        rate = 1 / self.preemption_s + 1 / self.limit_s
        return 1 / (1 / rate + self.waits.mean_s) if rate else 0.0


# --- coming back ------------------------------------------------------------------------------------------------------


#: The pieces of a restart after its nodes are available.
AFTER = ("relaunch", "imports", "communicator", "first_step")
#: What a node takes in addition if its processes are not started yet, as those of spare nodes would be.
_COLD = frozenset({"relaunch", "imports"})


def pieces_s(restart: Restart, ranks: int, kinds: Iterable[str], *, cold: bool = False) -> dict[str, float]:
    """Piece -> seconds of a restart after failures of these classes, in order, without the restore.

    A scheduler that queues a job again also replaces lost nodes: only the part of ``replace`` that exceeds ``requeue``
    counts then.
    """
    paid = WAYS[restart.mode].after(kinds) | (_COLD if cold else frozenset())
    found = {piece: seconds for piece, seconds in restart.seconds(ranks).items() if piece in paid}
    if "replace" in found:
        found["replace"] = max(0.0, found["replace"] - found.get("requeue", 0.0))
    return found


def stopped_s(restart: Restart, ranks: int) -> float:
    """Seconds for which a job is down that stops by itself to add nodes; without the restore."""
    pieces = pieces_s(restart, ranks, {"node"})
    return sum(seconds for piece, seconds in pieces.items() if piece != PIECES[0])


def new_turn_s(restart: Restart, ranks: int) -> float:
    """Seconds from the start of a new turn on other nodes until the processes are ready; without the restore."""
    pieces = pieces_s(restart, ranks, {"system"})
    return sum(pieces.get(piece, 0.0) for piece in AFTER)
