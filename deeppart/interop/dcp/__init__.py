"""DCP (torch.distributed.checkpoint): loading its checkpoints without it, and planners and storage for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deeppart._lazy import lazy_names
from deeppart.interop.dcp.loading import load

if TYPE_CHECKING:
    from deeppart.interop.dcp.extension import TensorCodecExtension, extension_registry
    from deeppart.interop.dcp.planner import BalancedSavePlanner
    from deeppart.interop.dcp.snapshots import Snapshots
    from deeppart.interop.dcp.storage_reader import StorageReader
    from deeppart.interop.dcp.storage_writer import StorageWriter

__all__ = [
    "BalancedSavePlanner",
    "Snapshots",
    "StorageReader",
    "StorageWriter",
    "TensorCodecExtension",
    "extension_registry",
    "load",
]

# These import torch.distributed.checkpoint, which ``load`` does not need.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BalancedSavePlanner": "deeppart.interop.dcp.planner",
        "Snapshots": "deeppart.interop.dcp.snapshots",
        "StorageReader": "deeppart.interop.dcp.storage_reader",
        "StorageWriter": "deeppart.interop.dcp.storage_writer",
        "TensorCodecExtension": "deeppart.interop.dcp.extension",
        "extension_registry": "deeppart.interop.dcp.extension",
    },
    __all__,
)
