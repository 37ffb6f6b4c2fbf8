"""Checkpoints of others, trainers, and their interfaces: the only package that knows them.

Checkpoints of others are read, and written, without executing anything that a file names. Each module imports the
library that it is for; nothing else in deeppart imports the modules of trainers.
"""

from typing import TYPE_CHECKING

from deeppart._lazy import lazy_names
from deeppart.interop.formats import load

if TYPE_CHECKING:
    from deeppart.interop.importing import Imported, import_checkpoint

__all__ = ["Imported", "import_checkpoint", "load"]

_IMPORTING = "deeppart.interop.importing"
__getattr__, __dir__ = lazy_names(__name__, {"Imported": _IMPORTING, "import_checkpoint": _IMPORTING}, __all__)
