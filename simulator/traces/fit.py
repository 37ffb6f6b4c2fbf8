"""Failure rates from a trace, as a machine file has them, with bounds.

A count in a time T that was fixed before is Poisson if events come at a constant rate, with the bounds of F. Garwood
(Biometrika 28, 1936): chi2(a/2; 2 r) / (2 T) <= rate <= chi2(1 - a/2; 2 r + 2) / (2 T). Where failures come in bursts,
bounds are wider than that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from deeppart.errors import ConfigError

from .record import FAILURES, KINDS, PREEMPTION, TIME_LIMIT, Event, Trace

_DAY_S = 86_400.0
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate, as the mean time between events."""

    events: int
    exposure_s: float  # time in which they were counted, of all things that could have had one together
    mtbf_s: float  # the time between two of one thing; infinity if there was none
    low_s: float  # low_s, high_s: bounds of it, at the given confidence; high_s is infinity if there was none
    high_s: float


@dataclass(frozen=True, slots=True)
class Fit:
    """What a trace says of failures."""

    trace: Trace  # with failures of nodes put together
    rates: Mapping[str, Rate]  # class, or "preemption" -> of one process, node, group, of the system, of one job
    group_nodes: int  # nodes of a group, on the average; 0 where none failed
    time_limits: int  # runs that had had their time
    notes: tuple[str, ...]  # what was assumed


def fit(trace: Trace, ranks_per_node: int | None = None) -> Fit:
    """The rates of a trace; the processes on each node if the file does not say how many."""
    seen = trace.observation
    if not seen.node_s:
        raise ConfigError(
            "the trace does not say what was watched",
            expected="lines `# seconds = N` and `# nodes = N` before the columns",
            found=f"{seen.seconds:g} s of {seen.nodes} nodes",
            where="deeppart-sim fit",
            todo="add them to the file: a log of failures alone does not say how many nodes did not fail",
        )
    trace = merged(trace)
    sizes = [len(event.nodes) for event in trace.events if event.kind == "group"]
    size = max(2, round(sum(sizes) / len(sizes))) if sizes else 0
    notes, process_s = list(trace.notes), seen.process_s
    if ranks_per_node is not None:
        process_s = seen.node_s * ranks_per_node
    elif not process_s:
        process_s = seen.node_s
        if any(event.kind == "process" for event in trace.events):
            notes.append(
                "how many processes a node has is not known: `process` is for one on each; give --ranks-per-node"
            )
    groups = -(-seen.nodes // size) if size else 0  # as a campaign has them
    exposures = {
        "process": process_s,
        "node": seen.node_s,
        "group": seen.node_s * groups / seen.nodes,
        "system": seen.seconds,
        PREEMPTION: seen.job_s or seen.seconds,
    }
    counts = {kind: sum(event.kind == kind for event in trace.events) for kind in KINDS}
    rates = {
        kind: rate(counts[kind], exposure_s)
        for kind, exposure_s in exposures.items()
        if exposure_s > 0 and kind in (*trace.tells, PREEMPTION)
    }
    return Fit(trace, rates, size, counts[TIME_LIMIT], tuple(notes))


def rate(events: int, exposure_s: float, confidence: float = CONFIDENCE) -> Rate:
    """The rate at which something happens."""
    from scipy.special import gammaincinv  # late: other commands need no scipy

    # Half the chi-square quantile of 2 r degrees of freedom is the gamma quantile of shape r.
    tail = (1 - confidence) / 2
    low_s = exposure_s / float(gammaincinv(events + 1, 1 - tail))
    high_s = exposure_s / float(gammaincinv(events, tail)) if events else math.inf
    return Rate(events, exposure_s, exposure_s / events if events else math.inf, low_s, high_s)


def failures_toml(found: Fit, source: str) -> str:
    """The table ``[failures]`` of a machine file, with what each number is from."""
    lines = ["[failures]", f"# from {source!r}, {found.trace.format}; in brackets 95 % bounds"]
    for kind in FAILURES:
        if kind not in found.rates:
            lines.append(f"# {kind}: not to be told from this file")
            continue
        one = found.rates[kind]
        lines.append(f"{kind} = {_literal(one.mtbf_s)}  # {one.events} ({_days(one.low_s)} to {_days(one.high_s)})")
        if kind == "group":
            lines.append(f"group_nodes = {found.group_nodes}")
    return "\n".join(lines) + "\n"


def _literal(seconds: float) -> str:
    return '"never"' if math.isinf(seconds) else f'"{seconds / _DAY_S:.6g} days"'


def _days(seconds: float) -> str:
    return "never" if math.isinf(seconds) else f"{seconds / _DAY_S:.4g} d"


# --- nodes that fail together -----------------------------------------------------------------------------------------


#: Failures of nodes within this time are one, in seconds.
WINDOW_S = 60.0


def merged(trace: Trace, window_s: float = WINDOW_S) -> Trace:
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
