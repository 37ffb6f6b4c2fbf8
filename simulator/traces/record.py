"""A trace, whatever file it comes from: what failed when, and what was watched for how long.

Without the second, the first has no rate: a log of failures alone does not say how many nodes did not fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from deeppart.errors import ConfigError

#: What can fail, from the smallest to the largest; as a campaign and a machine file have it.
FAILURES = ("process", "node", "group", "system")
#: The scheduler takes the nodes for something else.
PREEMPTION = "preemption"
#: The job has had its time.
TIME_LIMIT = "time limit"
KINDS = (*FAILURES, PREEMPTION, TIME_LIMIT)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that ended a job, or a node's work."""

    at_s: float  # since the observation began
    kind: str  # one of KINDS
    #: names of those that it struck. Of a node's failure more than one where the log does not say which of the job's
    #: nodes it was.
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """What was watched."""

    seconds: float  # for how long
    nodes: int  # how many different ones
    node_s: float  # seconds of all nodes together
    process_s: float = 0.0  # seconds of all processes together; 0 where the file says nothing of processes
    job_s: float = 0.0  # seconds of all runs of jobs together; 0 where the file says nothing of them


@dataclass(frozen=True, slots=True)
class Trace:
    """A file, read."""

    format: str  # name of the format
    events: tuple[Event, ...]  # in order of time
    observation: Observation  # what was watched
    names: tuple[str, ...]  # of the nodes, in order; a job's node number k is the k-th of them
    waits_s: tuple[float, ...] = ()  # how long runs had to wait in a queue
    notes: tuple[str, ...] = ()  # sentences: how the file was taken
    tells: tuple[str, ...] = FAILURES  # failures that such a file has if there are any; of others it says nothing


# --- what cannot be read ----------------------------------------------------------------------------------------------


#: A cell is shown up to here.
_MOST_SHOWN = 60


def refusal(path: Path, line: int, found: str, expected: str, column: str | None = None) -> ConfigError:
    """The error for one line."""
    return ConfigError(
        "a line of the trace is impossible",
        expected=expected,
        found=found,
        where=f"{path}, line {line}" + (f", column {column}" if column else ""),
        todo="correct the line; docs/simulator.md has the format",
    )


def unreadable(path: Path, error: Exception) -> ConfigError:
    """The error for a file that cannot be read at all."""
    missing = isinstance(error, FileNotFoundError)
    todo = "give the path of a trace, or the persistent directory of a job" if missing else "correct the file"
    return ConfigError("cannot read the trace", found=str(error), where=str(path), todo=todo)


def shown(found: object) -> str:
    """A cell, or a value of JSON, shortened."""
    if isinstance(found, (list, dict)):
        return f"a {type(found).__name__} of {len(found)}"  # may be nested deeper than repr can go
    if isinstance(found, str) and len(found) > _MOST_SHOWN:
        return repr(found[:_MOST_SHOWN] + "...")
    return repr(found)


# --- names of nodes ---------------------------------------------------------------------------------------------------


_DIGITS = re.compile(r"([0-9]+)")


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """The different names, sorted."""
    return tuple(sorted(set(names), key=_key))


def _key(name: str) -> tuple[tuple[int, int, str], ...]:
    pieces = _DIGITS.split(name)
    return tuple((0, int(piece), piece) if place % 2 else (1, 0, piece) for place, piece in enumerate(pieces))
