"""Failures of a job, class by class, drawn from a distribution; :mod:`.from_trace` has them from a trace.

The classes are what dies together: a process (its node's storage survives), a node, a group of nodes (a switch or a
rack), and everything. Times between failures of a class are exponential or Weibull; the job as a whole has one stream
of failures per class with the rate of all its processes, nodes or groups together, and each failure strikes one of
them at random.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from deeppart.errors import ConfigError

from ..machine.record import Failures, Machine

#: What can fail, from the smallest to the largest. Groups that have a name are classes of their own (:func:`classes`).
CLASSES = ("process", "node", "group", "system")


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure.

    Attributes:
        at_s: time since the job began.
        kind: one of CLASSES, or the name of a kind of groups.
        nodes: that it strikes; one for a process, whose storage survives.
    """

    at_s: float
    kind: str
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the job.

    Attributes:
        ranks, nodes: processes, and nodes that they run on.
    """

    ranks: int
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
    """All that can fail on a machine: CLASSES, and groups that have a name before "system".

    Example:
        >>> from deeppart_simulator.campaign.failures import classes
        >>> from deeppart_simulator.machine.record import Failures, Group
        >>> classes(Failures(groups={"rack": Group(nodes=4, mtbf=1e8)}))
        ('process', 'node', 'group', 'rack', 'system')
    """
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
