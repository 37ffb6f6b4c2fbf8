"""HDF5 files: archives of ``deeppart export``, and nested groups of data sets that others have written."""

from deeppart.interop.hdf5.loading import load

__all__ = ["load"]
