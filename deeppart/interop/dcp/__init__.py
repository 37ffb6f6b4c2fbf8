"""DCP (torch.distributed.checkpoint): reading its checkpoints without it, and a planner and storage for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deeppart._lazy import lazy_names

if TYPE_CHECKING:
    from deeppart.interop.dcp.extension import TensorCodecExtension, extension_registry
    from deeppart.interop.dcp.planner import BalancedSavePlanner
    from deeppart.interop.dcp.storage_reader import StorageReader
    from deeppart.interop.dcp.storage_writer import StorageWriter

__all__ = [
    "BalancedSavePlanner",
    "StorageReader",
    "StorageWriter",
    "TensorCodecExtension",
    "extension_registry",
]

# These import torch.distributed.checkpoint, which ``deeppart.interop.load`` does not need.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BalancedSavePlanner": "deeppart.interop.dcp.planner",
        "StorageReader": "deeppart.interop.dcp.storage_reader",
        "StorageWriter": "deeppart.interop.dcp.storage_writer",
        "TensorCodecExtension": "deeppart.interop.dcp.extension",
        "extension_registry": "deeppart.interop.dcp.extension",
    },
    __all__,
)
