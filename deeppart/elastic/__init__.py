"""Elastic training: jobs that continue on another number of ranks, with batch sizes that adapt.

Names are imported on first use: :mod:`deeppart.elastic.goodput` is also used where there is no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deeppart._lazy import lazy_names

if TYPE_CHECKING:
    from .accumulator import Accumulator
    from .data import ElasticSampler
    from .epochs import (
        Progress,
        ProgressMember,
        current_epoch,
        finished_epochs,
        progress,
        remaining_epochs_until,
    )
    from .loader import ElasticDataLoader
    from .noise import NoiseScale, Norms
    from .parallel import ElasticDataParallel
    from .permutation import permuted
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

_MODULES = {
    "accumulator": ("Accumulator",),
    "data": ("ElasticSampler",),
    "epochs": (
        "Progress",
        "ProgressMember",
        "current_epoch",
        "finished_epochs",
        "progress",
        "remaining_epochs_until",
    ),
    "loader": ("ElasticDataLoader",),
    "noise": ("NoiseScale", "Norms"),
    "parallel": ("ElasticDataParallel",),
    "permutation": ("permuted",),
    "ranks": ("Ranks",),
    "rules": ("AdamScale", "AdaScale", "LEGWScale", "LinearScale", "ScalingRule", "SqrtScale"),
    "shards": ("ShardedDataset",),
    "steps": ("Batch", "DataPosition", "MicroBatch", "micro_batches"),
    "stop_request": ("leave", "should_stop"),
}

__getattr__, __dir__ = lazy_names(
    __name__, {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}, __all__
)
