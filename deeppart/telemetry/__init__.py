"""A running job seen from outside: status files, metrics for Prometheus, events as JSON lines.

A thread of some ranks (:mod:`deeppart.telemetry.recorder`) turns what the job knows of itself anyway into events; no
rank is asked for it, and nothing that goes wrong here stops training.

To add a metric of checkpoints:

1. ``model/reports.py``: a field of ``Report``, or of ``LevelReport`` for a number of each level;
2. where it is measured: ``pending.note(name=value)``, ``pending.add(name=more)``, ``note_level(..., name=value)``;
3. ``telemetry/metrics.py``: a row of the table, with the name for Prometheus;
4. docs/configuration.md: a row, which a test asks for.

``pending.report``, status files, events, Prometheus and ``deeppart watch --prometheus`` follow.
"""

from deeppart.telemetry.events import EVENTS_BEGIN
from deeppart.telemetry.metrics import METRICS_BEGIN, prometheus_text
from deeppart.telemetry.recorder import AGAIN_S, LONG_S, Outputs, Recorder
from deeppart.telemetry.status import (
    CheckpointStatus,
    ErrorStatus,
    RankStatus,
    ScrubStatus,
    Statuses,
    StatusFile,
    read_statuses,
    sessions_with_status,
)

__all__ = [
    "AGAIN_S",
    "EVENTS_BEGIN",
    "LONG_S",
    "METRICS_BEGIN",
    "CheckpointStatus",
    "ErrorStatus",
    "Outputs",
    "RankStatus",
    "Recorder",
    "ScrubStatus",
    "StatusFile",
    "Statuses",
    "prometheus_text",
    "read_statuses",
    "sessions_with_status",
]
