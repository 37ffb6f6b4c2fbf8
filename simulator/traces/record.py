"""A trace, whatever file it comes from: what failed when, and what was watched for how long.

Without the second, the first has no rate: a log of failures alone does not say how many nodes did not fail.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from deeppart.errors import ConfigError

#: What can fail, from the smallest to the largest; as a campaign and a machine file have it.
FAILURES = ("process", "node", "group", "system")
#: The scheduler takes the nodes for something else.
PREEMPTION = "preemption"
#: The job has had its time.
TIME_LIMIT = "time limit"
KINDS = (*FAILURES, PREEMPTION, TIME_LIMIT)

Floats = npt.NDArray[np.float64]


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
    resolution_s: float = 1.0  # of the times


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of jobs, one after the other in three columns."""

    seconds: Floats  # seconds, nodes: how long each was, and on how many nodes
    nodes: Floats
    #: number in KINDS of what ended it; -1 where nothing did but itself, its user, or the end of the log
    ended: npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Trace:
    """A file, read."""

    format: str  # name of the format
    events: tuple[Event, ...]  # in order of time
    observation: Observation  # what was watched
    names: tuple[str, ...]  # of the nodes, in order; a job's node number k is the k-th of them
    runs: Runs | None = None  # of jobs, where the log is one of jobs; None where it is one of nodes
    waits_s: Floats = field(default_factory=lambda: np.empty(0))  # how long runs had to wait in a queue
    notes: tuple[str, ...] = ()  # sentences: how the file was taken
    one_job: bool = False  # true if the runs are of one job, one after the other
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


# --- runs of jobs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """One run of a job."""

    began_s: float  # began_s, ended_s: on any clock; the end is None where the log does not know it yet
    ended_s: float | None
    nodes: tuple[str, ...]  # that it had
    ended: str | None  # one of KINDS; None if it ended as it should, by its user, or not at all
    processes: int = 0  # that it had; 0 where the log does not say
    waited_s: float | None = None  # in the queue; None where the log does not say


class JobLog:
    """Takes runs, one after the other, and keeps of each only its numbers: a log may have millions."""

    def __init__(self) -> None:
        self._began, self._ended, self._nodes, self._processes = (array("d") for _ in range(4))
        self._kinds = array("b")
        self._waits = array("d")
        self._names: set[str] = set()
        self._last_names: tuple[str, ...] = ()
        self._events: list[tuple[float, str, tuple[str, ...]]] = []

    def __len__(self) -> int:
        return len(self._kinds)

    def add(self, run: LoggedRun) -> None:
        """One more run; of any time."""
        self._began.append(run.began_s)
        self._ended.append(float("nan") if run.ended_s is None else run.ended_s)
        self._nodes.append(len(run.nodes))
        self._processes.append(run.processes)
        self._kinds.append(-1 if run.ended is None else KINDS.index(run.ended))
        if run.waited_s is not None:
            self._waits.append(max(0.0, run.waited_s))
        if run.nodes is not self._last_names:  # jobs come in rows with the same nodes
            self._names.update(run.nodes)
            self._last_names = run.nodes
        if run.ended is not None and run.ended_s is not None:
            self._events.append((run.ended_s, run.ended, run.nodes))

    def trace(self, name: str, resolution_s: float, notes: Sequence[str]) -> Trace:
        """All of it. There has to be a run."""
        began, ended = np.array(self._began), np.array(self._ended)
        nodes, processes = np.array(self._nodes), np.array(self._processes)
        first, last = float(began.min()), float(max(began.max(), np.nanmax(np.append(ended, began.max()))))
        seconds = np.maximum(0.0, np.where(np.isnan(ended), last, ended) - began)
        observation = Observation(
            last - first, len(self._names), float(seconds @ nodes), float(seconds @ processes), resolution_s
        )
        events = sorted((at_s - first, kind, names) for at_s, kind, names in self._events)
        return Trace(
            name,
            tuple(Event(*event) for event in events),
            observation,
            in_order(self._names),
            Runs(seconds, nodes, np.array(self._kinds, dtype=np.int8)),
            np.array(self._waits),
            tuple(notes),
        )
