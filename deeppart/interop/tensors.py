"""Leaves of a checkpoint as torch tensors, for formats that know nothing else."""

from __future__ import annotations

import numpy as np
import torch

from deeppart.errors import StateError
from deeppart.offline.export.reading import Content
from deeppart.state.tree.leaves import TORCH_DTYPES
from deeppart.state.tree.paths import readable

_NAMES = "float64 float32 float16 complex128 complex64 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool".split()
#: numpy's dtypes -> those of torch that have the same elements.
_DTYPES = {np.dtype(name).newbyteorder("<").str: name for name in _NAMES}


def torch_dtype_name(content: Content, leaf: int) -> str:
    """The name of the dtype of torch that has the elements of a leaf."""
    kind = content.types[leaf]
    if kind.kind == "torch":
        return kind.dtype
    name = _DTYPES.get(np.dtype(kind.dtype).newbyteorder("<").str)
    if name is None:
        raise StateError(
            "a numpy array has elements that torch has no dtype for",
            expected="numbers of at most 16 bytes",
            found=str(kind),
            where=f"path {readable(content.checkpoint.structure.array_paths()[leaf])}",
            todo="leave it out (--keys), or export to HDF5, which has all of numpy's",
        )
    return name


def torch_dtype(content: Content, leaf: int) -> torch.dtype:
    """The same as a dtype."""
    return TORCH_DTYPES[torch_dtype_name(content, leaf)]


def arrays_remark(content: Content) -> tuple[str, ...]:
    """A line that says which leaves were numpy arrays; none if none was."""
    names = content.checkpoint.structure.array_paths()
    found = [readable(names[leaf]) for leaf in sorted(content.leaves) if content.types[leaf].kind == "numpy"]
    if not found:
        return ()
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    return (f"numpy arrays are tensors there: {', '.join(found[:4])}{more}",)
