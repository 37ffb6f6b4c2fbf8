"""The events of a job, as the recorder emits them: metrics, status and event files are computed from these. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from deeppart._times import timestamp
from deeppart.model import LevelReport, Report
from deeppart.pending import DONE, FAILED, OFF

#: The beginning of a file of events.
EVENTS_BEGIN = re.compile(rb'\{"event": "[a-z]+", "time": "[^"]*", "session": "[0-9a-f]{32}", ')


@dataclass(frozen=True, slots=True)
class Started:
    """The session has begun."""

    kind: ClassVar = "started"
    library: str
    process: int
    ranks: int
    nodes: int
    reduced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Restored:
    """A restore has succeeded."""

    kind: ClassVar = "restored"
    step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LevelEnded:
    """A level of a checkpoint is complete on all ranks, or has failed.

    Attributes:
        at: when, UTC, ISO 8601; ``report.seconds`` are from ``checkpoint()`` returning.
        busy_s: seconds this rank spent on its own work there.
    """

    kind: ClassVar = "level"
    step: int
    level: str
    at: str
    busy_s: float
    report: LevelReport

    @property
    def done(self) -> bool:
        """True if it is complete."""
        return self.report.state == DONE

    @property
    def failed(self) -> bool:
        """True if it has failed."""
        return self.report.state == FAILED


def level_ended(report: Report, level: str, returned_s: float) -> LevelEnded:
    """The event of a level of a checkpoint whose call returned at that time."""
    own = report.levels[level]
    at = timestamp(returned_s + (own.seconds or 0.0))
    return LevelEnded(report.step, level, at, report.stages_s.get(level, 0.0), own)


@dataclass(frozen=True, slots=True)
class CheckpointEnded:
    """A checkpoint has finished. ``began``: when ``checkpoint()`` returned, UTC, ISO 8601."""

    kind: ClassVar = "checkpoint"
    began: str
    report: Report


@dataclass(frozen=True, slots=True)
class Ended:
    """The session has ended; ``failed`` by an exception."""

    kind: ClassVar = "ended"
    failed: bool
    checkpoints: int


Event = Started | Restored | LevelEnded | CheckpointEnded | Ended


def event_line(event: Event, time: str, origin: Mapping[str, Any]) -> bytes:
    """An event as a line of JSON (https://jsonlines.org); a report's fields are merged with those of the event."""
    content = {field.name: getattr(event, field.name) for field in fields(event)}
    report = content.pop("report", None)
    if report is not None:
        content |= asdict(report)
    if isinstance(event, CheckpointEnded):
        content["levels"] = {name: level for name, level in content["levels"].items() if level["state"] != OFF}
    return json.dumps({"event": event.kind, "time": time, **origin, **content}, allow_nan=False).encode() + b"\n"
