"""A running job seen from outside: status files, metrics for Prometheus, events as JSON lines, scalars for TensorBoard.

A thread of some ranks writes what the job knows of itself anyway (:mod:`deeppart.telemetry.recorder`); nothing here
talks to other ranks, and nothing that goes wrong here stops training.
"""

from deeppart.telemetry.prometheus import METRICS_BEGIN, prometheus_text
from deeppart.telemetry.record import CheckpointStatus, ErrorStatus, LevelTotals, RankStatus, ScrubStatus
from deeppart.telemetry.recorder import AGAIN_S, EVENTS_BEGIN, LONG_S, Facts, Live, Outputs, Recorder
from deeppart.telemetry.status_files import Statuses, StatusFile, read_statuses, sessions_with_status
from deeppart.telemetry.tensorboard import ScalarWriter, to_tensorboard

__all__ = [
    "AGAIN_S",
    "EVENTS_BEGIN",
    "LONG_S",
    "METRICS_BEGIN",
    "CheckpointStatus",
    "ErrorStatus",
    "Facts",
    "LevelTotals",
    "Live",
    "Outputs",
    "RankStatus",
    "Recorder",
    "ScalarWriter",
    "ScrubStatus",
    "StatusFile",
    "Statuses",
    "prometheus_text",
    "read_statuses",
    "sessions_with_status",
    "to_tensorboard",
]
