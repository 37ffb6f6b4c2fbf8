"""Checkpoints of others, trainers, and their interfaces: the only package that knows them.

Checkpoints of others are read, and written, without executing anything that a file names. Each module imports the
library that it is for; nothing else in deeppart imports the modules of trainers.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deeppart.interop.importing import Imported, import_checkpoint
    from deeppart.interop.loading import load

__all__ = ["Imported", "import_checkpoint", "load"]

#: Name -> module, imported at first use: with torch, for which the commands' completion need not wait.
_LATER = {
    "Imported": "deeppart.interop.importing",
    "import_checkpoint": "deeppart.interop.importing",
    "load": "deeppart.interop.loading",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'deeppart.interop' has no attribute {name!r}")
