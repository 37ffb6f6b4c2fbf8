"""Export: a committed checkpoint in a form that can be read without deeppart. One process, no MPI."""

from deeppart.offline.export.exporting import Exported, Writer, export

__all__ = ["Exported", "Writer", "export"]
