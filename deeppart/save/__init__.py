"""Saving a checkpoint: capture, encode, write, protect, flush, commit, retire."""

from deeppart.save.encoding import Chunk, Compressing, Encoders, Encoding, Processors
from deeppart.save.incremental import Incremental
from deeppart.save.job import Job, Reader, Repair, StagingLease
from deeppart.save.keeping import Keeping
from deeppart.save.pipeline import Pipeline
from deeppart.save.protect import Protector
from deeppart.save.retention import CallNotes, Retention
from deeppart.save.saver import Agreed, Call, Saver, ShareSize, size_share
from deeppart.save.warnings import SuspicionWriter
from deeppart.save.workers import NICENESS, Workers, WriteBehind, lower_priority
from deeppart.save.write import RankStorage, write_chunks

__all__ = [
    "NICENESS",
    "Agreed",
    "Call",
    "CallNotes",
    "Chunk",
    "Compressing",
    "Encoders",
    "Encoding",
    "Incremental",
    "Job",
    "Keeping",
    "Pipeline",
    "Processors",
    "Protector",
    "RankStorage",
    "Reader",
    "Repair",
    "Retention",
    "Saver",
    "ShareSize",
    "StagingLease",
    "SuspicionWriter",
    "Workers",
    "WriteBehind",
    "lower_priority",
    "size_share",
    "write_chunks",
]
