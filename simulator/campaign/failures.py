"""What happens to a job: failures, drawn or from a trace, the scheduler, and what coming back takes.

The classes of failures are what dies together: a process (its node's storage survives), a node, a group of nodes (a
switch or a rack), and everything. The job has one stream of failures per class, exponential or Weibull, with the rate
of all its processes, nodes or groups together, and each failure strikes one of them at random. Of a trace, the job's
node number k is the k-th node in the order of the numbers in the names.

A scheduler ends a job after its time, or to make room, and may give notice (``--signal`` of Slurm). The job then
makes a checkpoint at all levels and leaves as soon as that is complete, or is ended with what is complete. Afterwards
it waits in a queue for other nodes, on which nothing of it is stored.
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
from ..traces.fit import merged
from ..traces.read import TABLE as PLAIN
from ..traces.read import read_trace
from ..traces.record import PREEMPTION, TIME_LIMIT, Event, Trace

#: What can fail, from the smallest to the largest. Groups that have a name are classes of their own (:func:`classes`).
CLASSES = ("process", "node", "group", "system")


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure."""

    at_s: float  # time since the job began
    kind: str  # one of CLASSES, or the name of a kind of groups
    nodes: tuple[int, ...]  # that it strikes; one for a process, whose storage survives


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the job."""

    ranks: int  # ranks, nodes: processes, and nodes that they run on
    nodes: int


def rates_per_s(failures: Failures, size: Size) -> dict[str, float]:
    """Class -> failures of the job per second."""
    groups = {name: group_count(size.nodes, kind.nodes) / kind.mtbf for name, kind in failures.kinds.items()}
    return {
        "process": size.ranks / failures.process,
        "node": size.nodes / failures.node,
        **groups,
        "system": 1 / failures.system,
    }


def fails(failures: Failures) -> bool:
    """Whether anything fails at all."""
    return any(rates_per_s(failures, Size(1, 1)).values())


def need_failures(machine: Machine, size: Size) -> None:
    """Refuse to look for a cadence where nothing fails."""
    if not any(rates_per_s(machine.failures, size).values()):
        raise ConfigError(
            "there is no best cadence without failures: each checkpoint is one too many",
            expected="a machine with a mean time between failures: of a process, a node, a group, or the system",
            found=f"{machine.name} never fails ([failures] and [groups] of its file)",
            where="--machine",
            todo='give one of them, such as node = "5 years"; `deeppart-sim fit` finds them in a trace',
        )


def classes(failures: Failures) -> tuple[str, ...]:
    """All that can fail on a machine: CLASSES, and groups that have a name before "system"."""
    return ("process", "node", *failures.kinds, "system")


def struck_nodes(failures: Failures, kind: str) -> int:
    """Nodes that a failure strikes which is not one of everything."""
    kinds = failures.kinds
    return kinds[kind].nodes if kind in kinds else 1


def drawn(failures: Failures, size: Size, random: np.random.Generator) -> Iterator[Failure]:
    """Failures in order of time, without end; nothing if there are none."""
    streams = []
    for kind, rate in rates_per_s(failures, size).items():
        if rate > 0:
            (child,) = random.spawn(1)
            streams.append(_stream(kind, rate, failures, size, child))
    yield from heapq.merge(*streams, key=lambda failure: failure.at_s)


def _stream(kind: str, rate: float, failures: Failures, size: Size, random: np.random.Generator) -> Iterator[Failure]:
    """Failures of one class. A Weibull distribution is scaled so that its mean is 1 / rate."""
    scale = 1 / (rate * math.gamma(1 + 1 / failures.shape))
    at_s = 0.0
    while True:
        at_s += scale * float(random.weibull(failures.shape))
        yield Failure(at_s, kind, _struck(kind, failures, size, random))


def _struck(kind: str, failures: Failures, size: Size, random: np.random.Generator) -> tuple[int, ...]:
    if kind == "system":
        return tuple(range(size.nodes))
    if kind in failures.kinds:
        width = struck_nodes(failures, kind)
        return nodes_of_group(int(random.integers(group_count(size.nodes, width))), size.nodes, width)
    return (int(random.integers(size.nodes)),)


def repair_after_s(machine: Machine, kind: str) -> float:
    """Seconds until nodes are back that a failure of a class has struck."""
    group = machine.failures.kinds.get(kind)
    return machine.restart.repair if group is None or math.isinf(group.repair) else group.repair


def group_count(nodes: int, group_nodes: int) -> int:
    """Groups of nodes that fail together; the last may be smaller."""
    return -(-nodes // group_nodes)


def nodes_of_group(group: int, nodes: int, group_nodes: int) -> tuple[int, ...]:
    """The nodes of one of them."""
    first = group * group_nodes
    return tuple(range(first, min(first + group_nodes, nodes)))


# --- from a trace -----------------------------------------------------------------------------------------------------


def failures_from(path: Path, size: Size, wall_s: float | None = None) -> tuple[Failure, ...]:
    """The failures of a job that runs through a trace from its beginning."""
    trace = read_trace(path, nodes=size.nodes)
    _check_size(trace, size, path)
    if wall_s is not None and 0 < trace.observation.seconds < wall_s:
        raise ConfigError(
            "the run is longer than the trace",
            expected=f"--days of at most {_floor(trace.observation.seconds / DAY_S)}",
            found=f"{wall_s / DAY_S:.6g} days",
            where=f"--trace {path}",
            todo="take fewer --days",
        )
    if trace.format != PLAIN:
        trace = merged(trace)
    place_of = {name: place for place, name in enumerate(trace.names[: size.nodes])}
    turns = 0
    found = []
    for event in trace.events:
        unsure = event.kind in ("node", "process") and len(event.nodes) != 1
        places = _places(event, place_of, size, turns)
        turns += unsure
        if places is not None:
            found.append(Failure(event.at_s, event.kind, places))
    return tuple(found)


def _floor(days: float) -> str:
    """So many days, and no more: what is told is to be accepted."""
    text = f"{days:.6g}"
    return text if float(text) <= days else f"{math.floor(days * 1e6) / 1e6:.17g}"


def _places(event: Event, place_of: dict[str, int], size: Size, turns: int) -> tuple[int, ...] | None:
    """The places of the job's nodes that an event struck; None if it is not the job's."""
    if event.kind == TIME_LIMIT:
        return None  # the job has a limit of its own
    if event.kind == "system" or (event.kind == PREEMPTION and not event.nodes):
        return tuple(range(size.nodes))
    names = event.nodes
    if event.kind in ("node", "process") and len(names) != 1:
        if not names:  # of a job's own runs: it was one of its nodes
            return (turns % size.nodes,)
        names = (names[turns % len(names)],)
    places = tuple(sorted(place_of[name] for name in names if name in place_of))
    if not places:
        return None
    return tuple(range(size.nodes)) if event.kind == PREEMPTION else places


def _check_size(trace: Trace, size: Size, path: Path) -> None:
    if size.nodes > len(trace.names):
        raise ConfigError(
            "the job has more nodes than the trace tells of",
            expected=f"a job of at most {len(trace.names):,} nodes",
            found=f"{size.nodes:,} nodes",
            where=f"--trace {path}",
            todo="take fewer --ranks, or fit rates to the trace (deeppart-sim fit) and draw failures from them",
        )


# --- schedulers -------------------------------------------------------------------------------------------------------


ENDS = (PREEMPTION, TIME_LIMIT)


@dataclass(frozen=True, slots=True)
class Waits:
    """Times in a queue."""

    mean_s: float = 0.0
    exponential: bool = False  # true if they are exponential; otherwise all are alike, or ``seen`` is drawn from
    seen: tuple[float, ...] = ()  # times of a trace, one of which it is, at random; none of these if empty

    @property
    def random(self) -> bool:
        """True if one is not like the next."""
        return self.exponential or len(set(self.seen)) > 1

    def one_s(self, random: np.random.Generator) -> float:
        """How long it takes this time."""
        if self.seen:
            return self.seen[int(random.integers(len(self.seen)))]
        return float(random.exponential(self.mean_s)) if self.exponential else self.mean_s


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What the scheduler does."""

    limit_s: float = math.inf  # a job has so much time at once, from its turn on
    preemption_s: float = math.inf  # mean time after which it has to make room; exponential
    notice_s: float = 0.0  # it is told so long before either
    waits: Waits = Waits()  # in the queue

    @property
    def random(self) -> bool:
        """True if chance has a part in it."""
        return math.isfinite(self.preemption_s) or self.waits.random

    def ends_per_s(self) -> float:
        """How often the job is ended, about."""
        rate = 1 / self.preemption_s + 1 / self.limit_s
        return 1 / (1 / rate + self.waits.mean_s) if rate else 0.0


# --- coming back ------------------------------------------------------------------------------------------------------


#: The pieces that come after nodes are gathered.
AFTER = ("relaunch", "imports", "communicator", "first_step")
#: The time that a node takes to join whose processes are not ready, where those of spare nodes would be.
_COLD = frozenset({"relaunch", "imports"})


def pieces_s(restart: Restart, ranks: int, kinds: Iterable[str], *, cold: bool = False) -> dict[str, float]:
    """Piece -> seconds, of those that are paid after failures of some classes; in their order, without the restore.

    A scheduler that starts a job again gives it other nodes for those that are lost: of the time to replace one, only
    what is longer than that comes on top.
    """
    paid = WAYS[restart.mode].after(kinds) | (_COLD if cold else frozenset())
    found = {piece: seconds for piece, seconds in restart.seconds(ranks).items() if piece in paid}
    if "replace" in found:
        found["replace"] = max(0.0, found["replace"] - found.get("requeue", 0.0))
    return found


def stopped_s(restart: Restart, ranks: int) -> float:
    """Seconds that a job pays that stops by itself to take nodes in; without the restore."""
    pieces = pieces_s(restart, ranks, {"node"})
    return sum(seconds for piece, seconds in pieces.items() if piece != PIECES[0])


def new_turn_s(restart: Restart, ranks: int) -> float:
    """Seconds from the begin of a new turn, on other nodes, until the processes are ready; without the restore."""
    pieces = pieces_s(restart, ranks, {"system"})
    return sum(pieces.get(piece, 0.0) for piece in AFTER)
