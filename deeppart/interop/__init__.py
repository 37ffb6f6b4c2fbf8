"""Checkpoints of others, trainers, and their interfaces: the only package that knows them.

Checkpoints of others are read, and written, without executing anything that a file names. Each module imports the
library that it is for; nothing else in deeppart imports the modules of trainers.
"""

from typing import TYPE_CHECKING, Any

from deeppart.interop.formats import load

if TYPE_CHECKING:
    from deeppart.interop.importing import Imported, import_checkpoint

__all__ = ["Imported", "import_checkpoint", "load"]


def __getattr__(name: str) -> Any:
    if name in ("Imported", "import_checkpoint"):  # with torch, for which the commands' completion need not wait
        from deeppart.interop import importing

        return getattr(importing, name)
    raise AttributeError(f"module 'deeppart.interop' has no attribute {name!r}")
