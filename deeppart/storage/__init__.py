"""Where checkpoints are stored: stores, the levels in them, their manifests and records, and who owns a directory."""

from deeppart.part import parse_step_name, step_name
from deeppart.storage.files import (
    BLOCK_BYTES,
    Appending,
    DurableFile,
)
from deeppart.storage.lineage import LINEAGE_NAME, LOCK_NAME, is_copy, read_lineage
from deeppart.storage.manifests import (
    DAMAGED,
    NEWER,
    UNFINISHED,
    NeededParts,
    StoredStep,
    StoredSteps,
    committed_steps,
    may_be_committed,
    read_manifest,
    read_step,
    read_steps,
)
from deeppart.storage.memory import MemoryLevel
from deeppart.storage.node import NODE_FOLDERS, NodeContents, NodeLevel, Note, file_problem, take_stock
from deeppart.storage.owner import DirectoryOwner, Owner, hold_directory, read_owner
from deeppart.storage.persistent import PersistentLevel
from deeppart.storage.posix import PosixStore
from deeppart.storage.rate import RateLimit
from deeppart.storage.records import (
    Halt,
    Suspicions,
    note_protection,
    read_halt,
    read_suspicions,
    reduced_runs,
    remove_halt,
    write_halt,
    write_suspicion,
)
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
    "DAMAGED",
    "LINEAGE_NAME",
    "LOCK_NAME",
    "MANIFEST_NAME",
    "MOST_LOOKS",
    "NEWER",
    "NODE_FOLDERS",
    "UNFINISHED",
    "Appending",
    "DirectoryOwner",
    "DurableFile",
    "Halt",
    "MemoryLevel",
    "NeededParts",
    "NodeContents",
    "NodeLevel",
    "Note",
    "Owner",
    "PersistentLevel",
    "PosixStore",
    "RateLimit",
    "Stat",
    "Store",
    "StoredStep",
    "StoredSteps",
    "Suspicions",
    "Writer",
    "committed_steps",
    "file_problem",
    "hold_directory",
    "is_copy",
    "is_gone",
    "is_temporary_name",
    "list_steps",
    "may_be_committed",
    "note_protection",
    "parse_step_name",
    "part_key",
    "read_halt",
    "read_lineage",
    "read_manifest",
    "read_owner",
    "read_step",
    "read_steps",
    "read_suspicions",
    "reduced_runs",
    "remove_halt",
    "remove_step",
    "step_name",
    "take_stock",
    "write_halt",
    "write_suspicion",
]
