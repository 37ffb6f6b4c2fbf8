"""A trace in memory: what failed when, in any file format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deeppart.errors import ConfigError

#: Failure classes, from the smallest to the largest, as in campaigns and machine files.
FAILURES = ("process", "node", "group", "system")
#: The scheduler gives the nodes to another job.
PREEMPTION = "preemption"
#: The job has reached its time limit.
TIME_LIMIT = "time limit"


@dataclass(frozen=True, slots=True)
class Event:
    """A failure, or another end of a job."""

    at_s: float  # since the beginning of the observation
    kind: str  # one of FAILURES, PREEMPTION or TIME_LIMIT
    #: names of the struck nodes. A node's failure has several if the log does not say which of the job's nodes it was.
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """The content of a trace."""

    events: tuple[Event, ...]  # in order of time
    names: tuple[str, ...]  # of the nodes, in order; node k of a job is the k-th of them
    seconds: float = 0.0  # length of the observation; 0 if unknown
    waits_s: tuple[float, ...] = ()  # times that runs had to wait in a queue


# --- nodes that fail together -----------------------------------------------------------------------------------------


#: Failures of nodes within this many seconds are one failure.
_WINDOW_S = 60.0


def merged(trace: Trace) -> Trace:
    """The trace with failures of nodes within a window merged into one.

    If several jobs name the same node, it is one failure of that node. Different nodes are a group; more than half of
    all nodes are the system.
    """
    nodes = [event for event in trace.events if event.kind == "node"]
    others = [event for event in trace.events if event.kind != "node"]
    found = [_one(cluster, len(trace.names)) for cluster in _clusters(nodes)]
    return replace(trace, events=tuple(sorted([*others, *found], key=lambda event: event.at_s)))


def _clusters(events: Sequence[Event]) -> Iterator[list[Event]]:
    cluster: list[Event] = []
    for event in events:
        if cluster and event.at_s - cluster[0].at_s > _WINDOW_S:
            yield cluster
            cluster = []
        cluster.append(event)
    if cluster:
        yield cluster


def _one(cluster: list[Event], size: int) -> Event:
    """One event for a cluster, with the fewest nodes whose failure explains it."""
    candidates: list[tuple[str, ...]] = []
    owner: dict[str, int] = {}  # name -> index of its only candidate
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


# --- errors -----------------------------------------------------------------------------------------------------------


#: Longer cells are cut in messages.
_MOST_SHOWN = 60


def refusal(path: Path, line: int, found: str, expected: str, column: str | None = None) -> ConfigError:
    """The error for an invalid line."""
    return ConfigError(
        "a line of the trace is impossible",
        expected=expected,
        found=found,
        where=f"{path}, line {line}" + (f", column {column}" if column else ""),
        todo="correct the line; docs/simulator.md has the format",
    )


def unreadable(path: Path, error: Exception) -> ConfigError:
    """The error for a file that cannot be read."""
    missing = isinstance(error, FileNotFoundError)
    todo = "give the path of a trace, or the persistent directory of a job" if missing else "correct the file"
    return ConfigError("cannot read the trace", found=str(error), where=str(path), todo=todo)


def shown(found: str) -> str:
    """A cell, shortened."""
    return repr(found if len(found) <= _MOST_SHOWN else found[:_MOST_SHOWN] + "...")


# --- names of nodes ---------------------------------------------------------------------------------------------------


_DIGITS = re.compile(r"([0-9]+)")


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The distinct names, sorted with numbers in numerical order."""
    return tuple(sorted(set(names), key=_key))


def _key(name: str) -> tuple[tuple[int, int, str], ...]:
    pieces = _DIGITS.split(name)
    return tuple((0, int(piece), piece) if place % 2 else (1, 0, piece) for place, piece in enumerate(pieces))
