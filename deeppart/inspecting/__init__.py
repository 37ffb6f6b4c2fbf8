"""The inspecting room: what checkpoints on storage are, told in frozen records. The commands only print these.

One process, no MPI; nothing here takes part in a running job, and only :mod:`~deeppart.inspecting.pruning` changes
anything on storage.
"""

from deeppart.inspecting.contents import Container, Contents, Holding, Leaf, Node, Value, read_contents
from deeppart.inspecting.listing import Listing, Place, StepSummary, list_directory, name_ranks
from deeppart.inspecting.naming import DamagedLeaf
from deeppart.inspecting.ownership import Owner, hold_directory, read_owner
from deeppart.inspecting.pruning import PrunePlan, PruneResult, Removal, Selection, plan_prune, prune
from deeppart.inspecting.verifying import Damage, Subject, Verdict, choose_steps, verify

__all__ = [
    "Container",
    "Contents",
    "Damage",
    "DamagedLeaf",
    "Holding",
    "Leaf",
    "Listing",
    "Node",
    "Owner",
    "Place",
    "PrunePlan",
    "PruneResult",
    "Removal",
    "Selection",
    "StepSummary",
    "Subject",
    "Value",
    "Verdict",
    "choose_steps",
    "hold_directory",
    "list_directory",
    "name_ranks",
    "plan_prune",
    "prune",
    "read_contents",
    "read_owner",
    "verify",
]
