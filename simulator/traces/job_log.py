"""Runs of jobs, gathered into a trace: for the logs of schedulers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .ordering import in_order
from .record import KINDS, Event, Observation, Runs, Trace


@dataclass(frozen=True, slots=True)
class LoggedRun:
    """One run of a job.

    Attributes:
        began_s, ended_s: on any clock; the end is None where the log does not know it yet.
        nodes: that it had.
        ended: one of KINDS; None if it ended as it should, by its user, or not at all.
        processes: that it had; 0 where the log does not say.
        waited_s: in the queue; None where the log does not say.
    """

    began_s: float
    ended_s: float | None
    nodes: tuple[str, ...]
    ended: str | None
    processes: int = 0
    waited_s: float | None = None


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
