"""Checkpoints without a job: one process, no MPI. Modules are imported when something of them is used: with torch,
for which ``deeppart --help`` and the completion of commands need not wait.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deeppart.offline.diff import Diff, Difference, Tolerance, compare
    from deeppart.offline.find import Chosen, find_step, with_checkpoint
    from deeppart.offline.inspect.contents import Container, Contents, Leaf, Value, read_contents
    from deeppart.offline.inspect.listing import Listing, list_directory, name_ranks
    from deeppart.offline.inspect.ownership import hold_directory, read_owner
    from deeppart.offline.inspect.planning import RestorePlan, plan_here, plan_together
    from deeppart.offline.inspect.pruning import PrunePlan, Selection, plan_prune, prune
    from deeppart.offline.inspect.verifying import Verification, VerifyResult, verify_directory
    from deeppart.offline.reading import BATCH_BYTES, OpenCheckpoint, load, target_of
    from deeppart.offline.single import Found, Item, read_single
    from deeppart.offline.watching import CheckpointView, JobView, age_of, blocked_of, look_at_job

_MODULE_OF = {
    name: module
    for module, names in {
        "diff": ("Diff", "Difference", "Tolerance", "compare"),
        "find": ("Chosen", "find_step", "with_checkpoint"),
        "inspect.contents": ("Container", "Contents", "Leaf", "Value", "read_contents"),
        "inspect.listing": ("Listing", "list_directory", "name_ranks"),
        "inspect.ownership": ("hold_directory", "read_owner"),
        "inspect.planning": ("RestorePlan", "plan_here", "plan_together"),
        "inspect.pruning": ("PrunePlan", "Selection", "plan_prune", "prune"),
        "inspect.verifying": ("Verification", "VerifyResult", "verify_directory"),
        "reading": ("BATCH_BYTES", "OpenCheckpoint", "load", "target_of"),
        "single": ("Found", "Item", "read_single"),
        "watching": ("CheckpointView", "JobView", "age_of", "blocked_of", "look_at_job"),
    }.items()
    for name in names
}

__all__ = [
    "BATCH_BYTES",
    "CheckpointView",
    "Chosen",
    "Container",
    "Contents",
    "Diff",
    "Difference",
    "Found",
    "Item",
    "JobView",
    "Leaf",
    "Listing",
    "OpenCheckpoint",
    "PrunePlan",
    "RestorePlan",
    "Selection",
    "Tolerance",
    "Value",
    "Verification",
    "VerifyResult",
    "age_of",
    "blocked_of",
    "compare",
    "find_step",
    "hold_directory",
    "list_directory",
    "load",
    "look_at_job",
    "name_ranks",
    "plan_here",
    "plan_prune",
    "plan_together",
    "prune",
    "read_contents",
    "read_owner",
    "read_single",
    "target_of",
    "verify_directory",
    "with_checkpoint",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    return found
