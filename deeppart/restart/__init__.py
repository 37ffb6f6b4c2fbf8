"""What survives a failure, and the plan to come back from it. Pure: no torch, MPI, clock or file."""

from deeppart.restart.inventory import Committed, Inventory, StoredPart
from deeppart.restart.planner import Candidate, Outlook, Read, Source, assign, explain, survey

__all__ = [
    "Candidate",
    "Committed",
    "Inventory",
    "Outlook",
    "Read",
    "Source",
    "StoredPart",
    "assign",
    "explain",
    "survey",
]
