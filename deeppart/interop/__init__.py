"""Other checkpoint formats, and adapters for training libraries.

Foreign checkpoints are read and written without executing code that a file names. Each adapter imports its training
library; nothing else in deeppart imports the adapters.
"""

from typing import TYPE_CHECKING

from deeppart._lazy import lazy_names
from deeppart.interop.formats import load

if TYPE_CHECKING:
    from deeppart.interop.importing import Imported, import_checkpoint

__all__ = ["Imported", "import_checkpoint", "load"]

_IMPORTING = "deeppart.interop.importing"
__getattr__, __dir__ = lazy_names(__name__, {"Imported": _IMPORTING, "import_checkpoint": _IMPORTING}, __all__)
