"""``every = "auto"``: decides when to checkpoint, and to which levels, from costs and failures measured in this job.

``failures`` estimates failure rates, ``history`` records the runs of a directory in a file, and ``auto`` measures the
cost of checkpoints in this run and decides. :mod:`deeppart.plan.interval` finds the best cadence.
"""

from deeppart.cadence.auto import AutoCadence, CadenceReport
from deeppart.cadence.failures import Run, failure_rates
from deeppart.cadence.history import History

__all__ = [
    "AutoCadence",
    "CadenceReport",
    "History",
    "Run",
    "failure_rates",
]
