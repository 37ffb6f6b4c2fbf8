"""A trace, whatever file it comes from: what failed when, and what was watched for how long.

Without the second, the first has no rate: a log of failures alone does not say how many nodes did not fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

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
    """Something that ended a job, or a node's work.

    Attributes:
        at_s: since the observation began.
        kind: one of KINDS.
        nodes: names of those that it struck. Of a node's failure more than one where the log does not say which of
            the job's nodes it was.
    """

    at_s: float
    kind: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Observation:
    """What was watched.

    Attributes:
        seconds: for how long.
        nodes: how many different ones.
        node_s: seconds of all nodes together.
        process_s: seconds of all processes together; 0 where the file says nothing of processes.
        resolution_s: of the times.
    """

    seconds: float
    nodes: int
    node_s: float
    process_s: float = 0.0
    resolution_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of jobs, one after the other in three columns.

    Attributes:
        seconds, nodes: how long each was, and on how many nodes.
        ended: number in KINDS of what ended it; -1 where nothing did but itself, its user, or the end of the log.
    """

    seconds: Floats
    nodes: Floats
    ended: npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Trace:
    """A file, read.

    Attributes:
        format: name of the format.
        events: in order of time.
        observation: what was watched.
        names: of the nodes, in order; a job's node number k is the k-th of them.
        runs: of jobs, where the log is one of jobs; None where it is one of nodes.
        waits_s: how long runs had to wait in a queue.
        notes: sentences: how the file was taken.
        one_job: true if the runs are of one job, one after the other.
        tells: failures that such a file has if there are any; of others it says nothing.
    """

    format: str
    events: tuple[Event, ...]
    observation: Observation
    names: tuple[str, ...]
    runs: Runs | None = None
    waits_s: Floats = field(default_factory=lambda: np.empty(0))
    notes: tuple[str, ...] = ()
    one_job: bool = False
    tells: tuple[str, ...] = FAILURES
