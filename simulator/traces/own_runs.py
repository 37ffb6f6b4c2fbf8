"""The runs that a job has had itself: ``deeppart-runs.json``, which ``every = "auto"`` keeps in ``persistent_dir``.

The level from which the next run came back says what had failed: from the local level, a process, since every node's
storage was there; from a partner's copies or parity, a node; from the file system, or nothing known, everything.
"""

from __future__ import annotations

import json
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from deeppart.model import REDUNDANT_LEVELS, Level
from deeppart.model.run_records import FORMAT, HISTORY_NAME, run_records

from .record import KINDS, Event, Observation, Runs, Trace
from .refusal import refusal, unreadable

NAME = "runs"
_MOST_BYTES = 1 << 20


def is_own_runs(beginning: str) -> bool:
    """True if a file that begins so is such a history."""
    return beginning.lstrip().startswith("{") and FORMAT in beginning


def read_own_runs(path: Path) -> Trace:
    """The runs of a directory."""
    path = path / HISTORY_NAME if path.is_dir() else path
    try:
        with path.open("rb") as file:
            records = run_records(json.loads(file.read(_MOST_BYTES)))
        spans = [_span(record) for record in records]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise unreadable(path, error) from error
    if not any(seconds for seconds, _ in spans):
        raise refusal(
            path, 1, f"{len(records)} runs, of which none has committed a checkpoint or ended", "one that has"
        )
    return _trace(records, spans)


def _trace(records: list[dict[str, Any]], spans: list[tuple[float, bool]]) -> Trace:
    seconds = np.array([length for length, _ in spans])
    nodes = np.array([float(record["nodes"]) for record in records])
    ended, events, clock = np.full(len(records), -1, dtype=np.int8), [], 0.0
    followers = [later for _, later in pairwise(records)] + [None]
    for place, ((length, failed), later) in enumerate(zip(spans, followers, strict=True)):
        clock += length
        if failed:
            kind = _kind(later["restored"] if later else None)
            ended[place] = KINDS.index(kind)
            events.append(Event(clock, kind, ()))
    most = max(record["nodes"] for record in records)
    notes = [f"{len(records)} runs, {clock / 86400:.3g} days; which node failed is not in this file"]
    observation = Observation(clock, most, float(seconds @ nodes), resolution_s=1.0)
    names = tuple(str(number) for number in range(most))
    runs, tells = Runs(seconds, nodes, ended), ("process", "node", "system")
    return Trace(NAME, tuple(events), observation, names, runs, notes=tuple(notes), one_job=True, tells=tells)


def _span(record: dict[str, Any]) -> tuple[float, bool]:
    """(how long a run is known to have lasted, whether it ended too early)."""
    until = record["ended"] or record["seen"] or record["began"]
    seconds = (datetime.fromisoformat(until) - datetime.fromisoformat(record["began"])).total_seconds()
    return max(0.0, seconds), not record["ended"] and bool(record["seen"])


def _kind(restored: str | None) -> str:
    if restored == Level.LOCAL:
        return "process"
    return "node" if restored in REDUNDANT_LEVELS else "system"
