"""Elastic training: jobs that continue on another number of ranks, with batch sizes that adapt."""

from __future__ import annotations

from .accumulator import Accumulator
from .data import ElasticSampler
from .loader import ElasticDataLoader
from .noise import NoiseScale, Norms
from .parallel import ElasticDataParallel
from .permutation import permuted
from .progress import Progress, ProgressMember, progress
from .ranks import Ranks
from .rules import AdamScale, AdaScale, LEGWScale, LinearScale, ScalingRule, SqrtScale
from .shards import ShardedDataset
from .steps import Batch, DataPosition, MicroBatch, micro_batches
from .stop_request import leave, should_stop

__all__ = [
    "Accumulator",
    "AdaScale",
    "AdamScale",
    "Batch",
    "DataPosition",
    "ElasticDataLoader",
    "ElasticDataParallel",
    "ElasticSampler",
    "LEGWScale",
    "LinearScale",
    "MicroBatch",
    "NoiseScale",
    "Norms",
    "Progress",
    "ProgressMember",
    "Ranks",
    "ScalingRule",
    "ShardedDataset",
    "SqrtScale",
    "current_epoch",
    "finished_epochs",
    "leave",
    "micro_batches",
    "permuted",
    "progress",
    "remaining_epochs_until",
    "should_stop",
]

#: :meth:`Progress.remaining_epochs_until` of the progress of this process.
remaining_epochs_until = progress.remaining_epochs_until


def current_epoch() -> int | None:
    """The epoch of the current loop over :func:`remaining_epochs_until`; None outside of loops."""
    return progress.current_epoch


def finished_epochs() -> int:
    """Number of finished epochs."""
    return progress.finished_epochs
