"""Where checkpoints are stored: stores, the levels in them, their manifests and records, and who owns a directory."""

from deeppart.part import parse_step_name, step_name
from deeppart.storage.files import (
    BLOCK_BYTES,
    Appending,
    DurableFile,
)
from deeppart.storage.lineage import LINEAGE_NAME, LOCK_NAME, is_copy, read_lineage
from deeppart.storage.manifests import (
    CommittedStep,
    NeededParts,
    committed_steps,
    may_be_committed,
    part_problem,
    read_manifest,
    read_manifests,
)
from deeppart.storage.node import NODE_FOLDERS, NodeContents, NodeLevel, file_problem, take_stock
from deeppart.storage.owner import DirectoryOwner
from deeppart.storage.persistent import PersistentLevel
from deeppart.storage.posix import PosixStore
from deeppart.storage.rate import RateLimit
from deeppart.storage.records import Suspicions, note_protection, read_suspicions, reduced_runs, write_suspicion
from deeppart.storage.spares import spare_name
from deeppart.storage.steps import (
    MANIFEST_NAME,
    MOST_LOOKS,
    is_gone,
    is_temporary_name,
    list_steps,
    part_key,
    remove_step,
)
from deeppart.storage.store import Stat, Store, Writer

__all__ = [
    "BLOCK_BYTES",
    "LINEAGE_NAME",
    "LOCK_NAME",
    "MANIFEST_NAME",
    "MOST_LOOKS",
    "NODE_FOLDERS",
    "Appending",
    "CommittedStep",
    "DirectoryOwner",
    "DurableFile",
    "NeededParts",
    "NodeContents",
    "NodeLevel",
    "PersistentLevel",
    "PosixStore",
    "RateLimit",
    "Stat",
    "Store",
    "Suspicions",
    "Writer",
    "committed_steps",
    "file_problem",
    "is_copy",
    "is_gone",
    "is_temporary_name",
    "list_steps",
    "may_be_committed",
    "note_protection",
    "parse_step_name",
    "part_key",
    "part_problem",
    "read_lineage",
    "read_manifest",
    "read_manifests",
    "read_suspicions",
    "reduced_runs",
    "remove_step",
    "spare_name",
    "step_name",
    "take_stock",
    "write_suspicion",
]
