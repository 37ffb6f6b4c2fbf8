"""Export: a committed checkpoint as one file that can be read without deeppart. One process, no MPI."""

from deeppart.offline.export.archive import Exported, export

__all__ = ["Exported", "export"]
