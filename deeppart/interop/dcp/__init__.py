"""Checkpoints of torch.distributed.checkpoint (DCP): loaded without it, and what DCP itself can use of this library."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

#: Name -> module, imported at first use: with torch.distributed.checkpoint, which ``load`` does without.
_LATER = {
    "BalancedSavePlanner": "deeppart.interop.dcp.planner",
    "Snapshots": "deeppart.interop.dcp.snapshots",
    "StorageReader": "deeppart.interop.dcp.storage_reader",
    "StorageWriter": "deeppart.interop.dcp.storage_writer",
    "TensorCodecExtension": "deeppart.interop.dcp.extension",
    "extension_registry": "deeppart.interop.dcp.extension",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'deeppart.interop.dcp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
