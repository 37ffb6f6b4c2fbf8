"""The checkpoints of others: read, and written, without executing anything that a file names."""

from deeppart.interop.importing import Imported, import_checkpoint
from deeppart.interop.loading import load

__all__ = ["Imported", "import_checkpoint", "load"]
