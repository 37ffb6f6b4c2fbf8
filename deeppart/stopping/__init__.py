"""Requests to stop: signals, files, and ranks that agree on the step; for :mod:`deeppart.elastic` and trainers."""

from deeppart.stopping.agreement import Agreement, Alone, agreement_of_job, agreement_of_torch
from deeppart.stopping.notices import Signals, WatchedFile

__all__ = [
    "Agreement",
    "Alone",
    "Signals",
    "WatchedFile",
    "agreement_of_job",
    "agreement_of_torch",
]
