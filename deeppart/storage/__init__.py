"""Storage of checkpoints: stores, levels, manifests, records, and the ownership of directories."""

from deeppart.storage.files import (
    BLOCK_BYTES,
    Appending,
    DurableFile,
)
from deeppart.storage.lineage import LINEAGE_NAME, LOCK_NAME, is_copy, read_lineage
from deeppart.storage.manifests import (
    NeededParts,
    StepState,
    StoredStep,
    committed_steps,
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
)
from deeppart.storage.steps import (
    MANIFEST_NAME,
    MOST_LOOKS,
    is_gone,
    is_temporary_name,
    list_steps,
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
    "StepState",
    "Store",
    "StoredStep",
    "Suspicions",
    "Writer",
    "committed_steps",
    "file_problem",
    "hold_directory",
    "is_copy",
    "is_gone",
    "is_temporary_name",
    "list_steps",
    "read_lineage",
    "read_owner",
    "read_step",
    "read_steps",
    "remove_step",
    "take_stock",
]
