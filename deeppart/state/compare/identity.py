"""Telling a tensor from another one that has got its address, without keeping it alive and without a weak reference.

``torch.utils.swap_tensors``, by which modules convert their parameters where that is asked for or tensors are wrapped,
refuses tensors to which there are weak references, Python's or its own. So what is noted of a tensor between two calls
is its object's id and a weak reference to its *storage*, whose number nobody else can get while that is there.

An id alone is given anew. Another tensor object with the same id over the same storage is another view of the same
bytes, and may have a version counter of its own: who believes counters has to know
(:mod:`deeppart.state.compare.digest_cache`).
"""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef


class TensorIdentity:
    """The identity of a tensor object and its storage."""

    __slots__ = ("_id", "_storage")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._id = id(tensor)
        self._storage = StorageWeakRef(tensor.untyped_storage())

    def is_of(self, tensor: object) -> bool:
        """True if this is that tensor, with the storage that it had."""
        if id(tensor) != self._id or not isinstance(tensor, torch.Tensor):
            return False
        return bool(tensor.untyped_storage()._cdata == self._storage.cdata)
