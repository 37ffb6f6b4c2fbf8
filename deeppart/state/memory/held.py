"""Holds the memory of a state's leaves while it is read by address.

A tensor is a view of a storage: ``p.data = x``, ``half()`` and ``set_`` give it another storage, and the old one is
freed with its last reference. So storages are held, not tensors. A held storage can still be given other memory
(``resize_``, ``share_memory_``), but only by the training's own code; a changed address or length reveals it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import eq, itemgetter
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from deeppart.errors import FreedMemoryError

#: Holds the memory of a leaf: a tensor's storage, or the array itself.
Holder = torch.UntypedStorage | npt.NDArray[Any]
#: Methods in C, which are mapped over all leaves without an interpreter step for each.
_STORAGE_OF, _ADDRESS_OF = torch.Tensor.untyped_storage, torch.Tensor.data_ptr
storage_address, _LENGTH_OF = torch.UntypedStorage.data_ptr, torch.UntypedStorage.nbytes


class HeldMemory:
    """The memory of a state's leaves, held from construction on.

    Attributes:
        holders: by leaf number.
        pointers: address of each leaf's first element; it was read after the holder was held.
        bases, lengths: address and bytes of each holder's memory.
        arrays: numbers of the leaves that are numpy arrays.
    """

    def __init__(self, data: Sequence[Any]) -> None:
        self.holders: list[Holder] = []
        self.pointers, self.bases, self.lengths = array("q"), array("q"), array("q")
        self.arrays: list[int] = []
        try:
            storages = list(map(_STORAGE_OF, data))
        except TypeError:  # some leaves are numpy arrays
            self._hold_each(data)
            return
        self.holders += storages
        self.pointers.extend(map(_ADDRESS_OF, data))
        self.bases.extend(map(storage_address, storages))
        self.lengths.extend(map(_LENGTH_OF, storages))

    def _hold_each(self, data: Sequence[Any]) -> None:
        for leaf, item in enumerate(data):
            is_tensor = isinstance(item, torch.Tensor)
            holder = item.untyped_storage() if is_tensor else item
            self.holders.append(holder)
            self.pointers.append(item.data_ptr() if is_tensor else place_of(item)[0])
            base, length = place_of(holder)
            self.bases.append(base)
            self.lengths.append(length)
            if not is_tensor:
                self.arrays.append(leaf)

    def lacking(self, needed: npt.NDArray[np.int64]) -> list[int]:
        """Leaves that reach beyond their memory."""
        below = np.asarray(self.pointers, dtype=np.int64) - np.asarray(self.bases, dtype=np.int64)
        outside = (below < 0) | (below + needed > np.asarray(self.lengths, dtype=np.int64))
        lacking: list[int] = np.flatnonzero(outside & (needed > 0)).tolist()
        return lacking

    def stands(self, leaf: int) -> bool:
        """True if the memory of a leaf has not moved."""
        return place_of(self.holders[leaf]) == (self.bases[leaf], self.lengths[leaf])

    def moved(self, leaves: Sequence[int]) -> list[int]:
        """Those of the leaves whose memory has moved."""
        if not self.arrays and len(leaves) > 1:
            chosen = itemgetter(*leaves)
            holders: tuple[Any, ...] = chosen(self.holders)
            bases, lengths = map(storage_address, holders), map(_LENGTH_OF, holders)
            # Without an interpreter step for each of thousands.
            if all(map(eq, bases, chosen(self.bases))) and all(map(eq, lengths, chosen(self.lengths))):
                return []
        return [leaf for leaf in leaves if not self.stands(leaf)]


def place_of(holder: Holder) -> tuple[int, int]:
    """Address of a holder's first byte (an array's first element), and its length in bytes."""
    if isinstance(holder, torch.UntypedStorage):
        return holder.data_ptr(), holder.nbytes()
    return int(holder.__array_interface__["data"][0]), holder.nbytes


def without_memory(alias: torch.Tensor) -> torch.Tensor:
    """Release the memory of an alias, which keeps the version counter that it shares; returns the same object."""
    nothing: Any = torch.empty(0, dtype=alias.dtype, device=alias.device)
    alias.data = nothing
    return alias


class Extents:
    """The extents of leaves in memory: computed once, except for leaves that are not contiguous."""

    def __init__(self, data: Sequence[Any]) -> None:
        self._needed = np.fromiter(map(_reach, data), dtype=np.int64, count=len(data))
        self._ragged = [i for i, item in enumerate(data) if isinstance(item, torch.Tensor) and not item.is_contiguous()]

    def of(self, data: Sequence[Any]) -> npt.NDArray[np.int64]:
        """Bytes from each leaf's first element to the end of its last one; 0 for empty leaves."""
        for leaf in self._ragged:
            self._needed[leaf] = _reach(data[leaf])
        return self._needed


def _reach(item: Any) -> int:
    if not isinstance(item, torch.Tensor) or item.is_contiguous():
        return int(item.nbytes)
    return extent(item)[1]


def extent(item: Any) -> tuple[int, int]:
    """Lowest address of the elements of a tensor or array, and the bytes from there to the end of the highest one."""
    if isinstance(item, torch.Tensor):
        if item.is_contiguous():
            return item.data_ptr(), item.nbytes
        start, strides = item.data_ptr(), [step * item.itemsize for step in item.stride()]
    else:
        start, strides = int(item.__array_interface__["data"][0]), item.strides
    if 0 in item.shape:
        return start, 0
    reach = [(length - 1) * step for length, step in zip(item.shape, strides, strict=True)]
    return start + sum(step for step in reach if step < 0), sum(map(abs, reach)) + int(item.itemsize)


def array_lacks_memory(found: npt.NDArray[Any]) -> tuple[int, int] | None:
    """The needed and the present bytes of an array that reaches beyond its memory; None if numpy sees no such thing.

    It may if its memory was resized under its views, or if a tensor was given other memory since ``numpy()``. Arrays
    made from a buffer, dlpack or an address cannot be checked.
    """
    if found.base is None or not found.size:
        return None
    low, needed = extent(found)
    high, item = low + needed, cast(Any, found)
    while isinstance(item, np.ndarray) and item.base is not None:
        item = item.base
        if isinstance(item, np.ndarray):
            start, length = extent(item)
        elif isinstance(item, torch.Tensor) and item.layout is torch.strided and item.is_cpu:
            start, length = place_of(item.untyped_storage())
        else:
            return None
        end = start + length
        if low < start or high > end:
            return needed, max(0, min(high, end) - max(low, start))
    return None


def freed_memory(path: str, expected: int, found: int) -> FreedMemoryError:
    """The error that names a leaf whose memory is gone or too small."""
    return FreedMemoryError(
        f"the state holds a tensor whose memory was freed, or is smaller than it says: {path}",
        expected=f"{expected} bytes",
        found=f"{found} bytes",
        where=f"path {path}",
        todo="give it memory and contents again before the call (untyped_storage().resize_ has made it smaller), or "
        "leave it out of the state",
    )
