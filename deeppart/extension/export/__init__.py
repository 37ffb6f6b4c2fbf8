"""Export of a committed checkpoint to formats that can be read without deeppart. One process, no MPI."""

from deeppart.extension.export.content import Content
from deeppart.extension.export.exporting import Exported, Writer, export

__all__ = ["Content", "Exported", "Writer", "export"]
