"""A running job seen from outside: status files, metrics for Prometheus, events as JSON lines, scalars for TensorBoard.

A thread of some ranks writes what the job knows of itself anyway (:mod:`deeppart.telemetry.recorder`); nothing here
talks to other ranks, and nothing that goes wrong here stops training.
"""

from deeppart.telemetry.tensorboard import ScalarWriter, to_tensorboard

__all__ = ["ScalarWriter", "to_tensorboard"]
