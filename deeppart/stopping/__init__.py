"""Requests to stop: signals, files, and ranks that agree on the step."""

from deeppart.stopping.agreement import Agreement, agreement_of_job
from deeppart.stopping.notices import Signals, WatchedFile

__all__ = [
    "Agreement",
    "Signals",
    "WatchedFile",
    "agreement_of_job",
]
