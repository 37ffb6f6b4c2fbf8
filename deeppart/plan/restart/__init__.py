"""The inventory after a failure, and the plan of a restore from it. Pure: no torch, MPI, clock or files."""

from deeppart.plan.restart.healing import Encode, Healing, Transfer, Wish, Write, plan_healing
from deeppart.plan.restart.inventory import Committed, Inventory, Location, StoredParity, StoredPart, on_node
from deeppart.plan.restart.planner import Candidate, Outlook, survey
from deeppart.plan.restart.reading import Hop, Portion, Read, Routes, assign, explain, explain_parts, explain_sources
from deeppart.plan.restart.sources import BlockFile, FilesByAttempt, Rebuild, Source

__all__ = [
    "BlockFile",
    "Candidate",
    "Committed",
    "Encode",
    "FilesByAttempt",
    "Healing",
    "Hop",
    "Inventory",
    "Location",
    "Outlook",
    "Portion",
    "Read",
    "Rebuild",
    "Routes",
    "Source",
    "StoredParity",
    "StoredPart",
    "Transfer",
    "Wish",
    "Write",
    "assign",
    "explain",
    "explain_parts",
    "explain_sources",
    "on_node",
    "plan_healing",
    "survey",
]
