"""Nodes that fail together: what strikes within seconds of each other, and whether that is more than chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from .record import Event, Trace

#: Failures of nodes within this time are one, in seconds, unless the file's times are coarser.
WINDOW_S = 60.0


def merged(trace: Trace, window_s: float) -> Trace:
    """The trace with the failures of nodes that came within a window put together.

    Of several jobs that name the same node it is that node's failure, once. Different nodes are a group; more than half
    of all nodes are the system.
    """
    nodes = [event for event in trace.events if event.kind == "node"]
    others = [event for event in trace.events if event.kind != "node"]
    found = [_one(cluster, trace.observation.nodes) for cluster in _clusters(nodes, window_s)]
    return replace(trace, events=tuple(sorted([*others, *found], key=lambda event: event.at_s)))


def _clusters(events: Sequence[Event], window_s: float) -> Iterator[list[Event]]:
    cluster: list[Event] = []
    for event in events:
        if cluster and event.at_s - cluster[0].at_s > window_s:
            yield cluster
            cluster = []
        cluster.append(event)
    if cluster:
        yield cluster


def _one(cluster: list[Event], size: int) -> Event:
    """One event for all: which nodes, at least, have to have failed."""
    candidates: list[tuple[str, ...]] = []
    owner: dict[str, int] = {}  # name -> place of its candidate; no name is in two
    for event in cluster:
        known = min((owner[name] for name in event.nodes if name in owner), default=None)
        if known is None and candidates and not event.nodes:
            continue
        if known is None:
            owner |= dict.fromkeys(event.nodes, len(candidates))
            candidates.append(event.nodes)
            continue
        names = set(event.nodes)
        common = tuple(name for name in candidates[known] if name in names)
        for name in set(candidates[known]) - names:
            del owner[name]
        candidates[known] = common
    if len(candidates) == 1:
        return Event(cluster[0].at_s, "node", candidates[0])
    struck = tuple(sorted({names[0] for names in candidates if names}))
    kind = "system" if 2 * len(struck) > size > 2 else "group"
    return Event(cluster[0].at_s, kind, struck)


@dataclass(frozen=True, slots=True)
class Together:
    """How often nodes fail together.

    Attributes:
        window_s: what counts as together.
        failures: of nodes, one by one, before they are put together.
        sizes: nodes at once -> how often.
        by_chance: so many groups would be expected of nodes that fail independently.
        p_value: the probability of as many groups as there were, or more, by chance.
    """

    window_s: float
    failures: int
    sizes: dict[int, int]
    by_chance: float
    p_value: float

    @property
    def groups(self) -> int:
        """How often several nodes failed at once."""
        return sum(count for size, count in self.sizes.items() if size > 1)

    @property
    def correlated(self) -> bool:
        """True if that is more than chance: once in a thousand times at most."""
        return self.groups > 0 and self.p_value < 1e-3

    @property
    def typical(self) -> int:
        """Nodes of a group, on the average, at least 2; 0 where there was none."""
        counts = [(size, count) for size, count in self.sizes.items() if size > 1]
        total = sum(count for _, count in counts)
        return max(2, round(sum(size * count for size, count in counts) / total)) if total else 0


def together(trace: Trace, window_s: float) -> Together:
    """How often nodes of a trace fail together.

    If N failures came at random in a time T, windows of W seconds that begin with a failure and have another one in
    them would be about N (1 - exp(-N W / T)), Poisson.
    """
    failures = sum(event.kind == "node" for event in trace.events)
    sizes = Counter(max(1, len(event.nodes)) if event.kind != "node" else 1 for event in _struck(trace, window_s))
    seconds = trace.observation.seconds
    chance = failures * -math.expm1(-failures * window_s / seconds) if seconds else 0.0
    groups = sum(count for size, count in sizes.items() if size > 1)
    return Together(window_s, failures, dict(sorted(sizes.items())), chance, _at_least(groups, chance))


def _struck(trace: Trace, window_s: float) -> Iterable[Event]:
    before = {id(event) for event in trace.events}
    return (event for event in merged(trace, window_s).events if event.kind == "node" or id(event) not in before)


def _at_least(count: int, mean: float) -> float:
    """The probability that a Poisson variable is so large."""
    from scipy.special import pdtrc  # late: other commands need no scipy

    return 1.0 if count == 0 else float(pdtrc(count - 1, mean)) if mean > 0 else 0.0
