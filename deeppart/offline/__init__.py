"""Checkpoints without a job: one process, no MPI. Modules are imported at first use, because some import torch, for
which ``deeppart --help`` and completion should not wait.
"""

from typing import TYPE_CHECKING

from deeppart._lazy import lazy_names

if TYPE_CHECKING:
    from deeppart.offline.diff import Diff, Difference, Tolerance, compare
    from deeppart.offline.find import Chosen, find_step, with_checkpoint
    from deeppart.offline.inspect.contents import Container, Contents, Leaf, Value, read_contents
    from deeppart.offline.inspect.listing import Listing, list_directory, name_ranks
    from deeppart.offline.inspect.planning import RestorePlan, plan_here, plan_together
    from deeppart.offline.inspect.pruning import PrunePlan, Selection, plan_prune, prune
    from deeppart.offline.inspect.verifying import Verification, VerifyResult, verify_directory
    from deeppart.offline.reading import BATCH_BYTES, OpenCheckpoint, Row, in_batches, load, select
    from deeppart.offline.single import Found, ReadLeaf, ReadValue, read_single
    from deeppart.offline.watching import CheckpointView, JobView, age_of, look_at_job

_MODULES = {
    "diff": ("Diff", "Difference", "Tolerance", "compare"),
    "find": ("Chosen", "find_step", "with_checkpoint"),
    "inspect.contents": ("Container", "Contents", "Leaf", "Value", "read_contents"),
    "inspect.listing": ("Listing", "list_directory", "name_ranks"),
    "inspect.planning": ("RestorePlan", "plan_here", "plan_together"),
    "inspect.pruning": ("PrunePlan", "Selection", "plan_prune", "prune"),
    "inspect.verifying": ("Verification", "VerifyResult", "verify_directory"),
    "reading": ("BATCH_BYTES", "OpenCheckpoint", "Row", "in_batches", "load", "select"),
    "single": ("Found", "ReadLeaf", "ReadValue", "read_single"),
    "watching": ("CheckpointView", "JobView", "age_of", "look_at_job"),
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
    "JobView",
    "Leaf",
    "Listing",
    "OpenCheckpoint",
    "PrunePlan",
    "ReadLeaf",
    "ReadValue",
    "RestorePlan",
    "Row",
    "Selection",
    "Tolerance",
    "Value",
    "Verification",
    "VerifyResult",
    "age_of",
    "compare",
    "find_step",
    "in_batches",
    "list_directory",
    "load",
    "look_at_job",
    "name_ranks",
    "plan_here",
    "plan_prune",
    "plan_together",
    "prune",
    "read_contents",
    "read_single",
    "select",
    "verify_directory",
    "with_checkpoint",
]

__getattr__, __dir__ = lazy_names(
    __name__, {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}, __all__
)
