"""What a training script uses: AdaptDL's ``adaptdl.torch``."""

from __future__ import annotations

from ..collective import connect
from . import scaling_rules
from .data import (
    Accumulator,
    AdaptiveDataLoader,
    current_dataloader,
    current_epoch,
    finished_epochs,
    remaining_epochs_until,
)
from .parallel import AdaptiveDataParallel

__all__ = [
    "Accumulator",
    "AdaptiveDataLoader",
    "AdaptiveDataParallel",
    "current_dataloader",
    "current_epoch",
    "finished_epochs",
    "init_process_group",
    "remaining_epochs_until",
    "scaling_rules",
]


def init_process_group(
    backend: str, init_method: str | None = None, world_size: int | None = None, rank: int | None = None
) -> None:
    """Connect all replicas: torch.distributed, by AdaptDL's variables or the launcher's (collective)."""
    connect(backend, init_method, world_size, rank)
