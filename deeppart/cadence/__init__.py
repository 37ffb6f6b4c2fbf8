"""``every = "auto"``: decides when to checkpoint, and to which levels, from costs and failures measured in this job.

``failures`` estimates rates, ``history`` keeps the runs of a directory in a file, ``auto`` measures what
checkpoints cost in this run, and decides. What makes a cadence good is :mod:`deeppart.plan.interval`'s to say.
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
