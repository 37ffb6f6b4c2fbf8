"""The exporting room: a committed checkpoint as one file that needs no deeppart to be read. One process, no MPI."""

from deeppart.offline.export.archive import Exported, export

__all__ = ["Exported", "export"]
