"""AdaptDL's ``adaptdl.torch``."""

from __future__ import annotations

from deeppart.elastic import current_epoch

from ..collective import init_process_group
from . import scaling_rules
from .data import Accumulator, AdaptiveDataLoader, current_dataloader, finished_epochs, remaining_epochs_until
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
