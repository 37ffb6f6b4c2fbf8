"""A running job seen from outside: status files, metrics for Prometheus, events as JSON lines.

A thread of some ranks (:mod:`deeppart.telemetry.recorder`) turns what the job knows of itself anyway into events; no
rank is asked for it, and nothing that goes wrong here stops training.
"""

from deeppart.telemetry.events import EVENTS_BEGIN
from deeppart.telemetry.metrics import METRICS_BEGIN, prometheus_text
from deeppart.telemetry.recorder import AGAIN_S, LONG_S, Outputs, Recorder
from deeppart.telemetry.status import (
    CheckpointStatus,
    ErrorStatus,
    RankStatus,
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
    "StatusFile",
    "Statuses",
    "prometheus_text",
    "read_statuses",
    "sessions_with_status",
]
