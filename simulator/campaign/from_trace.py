"""A trace as the failures of a job: which of its nodes they struck.

The job's node number k is the k-th node of the trace, in the order of the numbers in the names; what befell others is
not the job's. Where the log does not say which of several nodes it was, they take turns.
"""

from __future__ import annotations

import math
from pathlib import Path

from deeppart.errors import ConfigError

from ..machine.kinds import DAY_S
from ..traces.plain import NAME as PLAIN
from ..traces.read import read_trace
from ..traces.record import PREEMPTION, TIME_LIMIT, Event, Trace
from ..traces.together import WINDOW_S, merged
from .failures import Failure, Size


def failures_from(
    path: Path, size: Size, system: str | None = None, wall_s: float | None = None
) -> tuple[Failure, ...]:
    """The failures of a job that runs through a trace from its beginning."""
    trace = read_trace(path, nodes=size.nodes, system=system)
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
        trace = merged(trace, max(trace.observation.resolution_s, WINDOW_S))
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
