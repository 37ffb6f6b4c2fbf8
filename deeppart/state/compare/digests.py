"""The digests with which the ranks that have a leaf find out whether their bytes of it are equal.

* Leaves that an optimizer trains, which change at every step: one slice of each at a time
  (:mod:`deeppart.state.compare.slices`).
* Tensors that have not been written to since the ranks last compared them, by torch's version counters: one slice at a
  time, too, in case of a write that torch does not count.
* Leaves for which the user asks for it (``"rotate"``): one slice at a time.
* All others: in full at every checkpoint. So are small leaves, leaves on a device, which are cheap to read there, numpy
  arrays, and leaves with gaps in memory.

Each rank decides by itself which of its leaves are trained or unchanged, and in which order they are in memory. All of
this is in the digest, so that ranks that disagree find out, and compare such a leaf in full.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from deeppart.state.compare.optimizers import Trained, holds_alone
from deeppart.state.compare.slices import DeferredSlices, RotatingSlices, memory_order
from deeppart.state.fingerprint import SMALL_LEAF_BYTES, SmallLeaves, full_digests, hash63, is_on_device
from deeppart.state.tensors import LeafType
from deeppart.state.tree import FlatState

Digests = npt.NDArray[np.int64]


#: Flag in the memory order of a leaf: its slices are compared in the call, whether an optimizer trains it or not.
_IN_CALL = 1 << 62


class _Mark(NamedTuple):
    """A tensor as the ranks have compared it. The weak reference keeps the storage's identity from being reused."""

    storage: StorageWeakRef
    pointer: int
    version: int


class LeafDigests:
    """Digests of leaves that the same ranks have.

    Attributes:
        orders: the memory order of each leaf whose slices are compared in rotation; 0 for leaves compared in full.
    """

    def __init__(
        self,
        leaves: Sequence[int],
        flat: FlatState,
        types: Sequence[LeafType],
        in_full: Collection[int] = (),
        in_slices: Collection[int] = (),
        *,
        counters: bool = True,
        threads: int = 1,
    ) -> None:
        self._threads = threads
        self._types, self._counters, self._in_slices = types, counters, frozenset(in_slices)
        self._asked = frozenset(in_full) | self._in_slices
        self._leaves = np.array(leaves, dtype=np.int64)
        self._is_large = np.array([types[leaf].nbytes > SMALL_LEAF_BYTES for leaf in leaves], dtype=np.bool_)
        self._small = SmallLeaves(self._leaves[~self._is_large].tolist(), flat.data, types)
        may_rotate = self._is_large & ~np.isin(self._leaves, list(in_full))
        #: Position, leaf, bytes and memory order of leaves that may rotate: the same for all states of this structure.
        self._may_rotate = [
            (at, leaves[at], types[leaves[at]].nbytes, order)
            for at in np.flatnonzero(may_rotate).tolist()
            if (order := memory_order(flat.data[leaves[at]]))
        ]
        #: The orders that this rank found at its last :meth:`look`.
        self._own_orders = self.orders = np.zeros(len(leaves), dtype=np.int64)
        #: By position, the tensors that may rotate, as this rank found them last, and as the ranks compared them last.
        self._found: dict[int, _Mark] = {}
        self._compared: dict[int, _Mark] = {}
        self._rotate(self.orders)

    def look(self, flat: FlatState, trained: Mapping[int, Trained]) -> None:
        """Find the rotating leaves of this rank; an agreement of the ranks holds while this rank finds the same."""
        orders = np.zeros(len(self._leaves), dtype=np.int64)
        pointers, holders, compared = flat.pointers, flat.memory.holders, self._compared
        self._found = {}
        for at, leaf, nbytes, order in self._may_rotate:
            if leaf in self._in_slices:
                orders[at] = order | _IN_CALL
                continue
            pointer, holder = pointers[leaf], holders[leaf]
            seen = trained.get(pointer)
            if seen is not None and seen.is_all_of(holder, nbytes):
                orders[at] = order
                continue
            data = flat.data[leaf]
            if not self._counters or not isinstance(data, torch.Tensor) or not _are_writes_counted(data, holder):
                continue
            mark = compared.get(at)
            now = data._version, pointer, holder._cdata  # type: ignore[union-attr]
            if mark is not None and (mark.version, mark.pointer, mark.storage.cdata) == now:
                orders[at] = order | _IN_CALL
            else:
                mark = _Mark(StorageWeakRef(holder), pointer, data._version)
            self._found[at] = mark
        if not np.array_equal(orders, self._own_orders):
            self._own_orders = orders
            self._rotate(orders)

    def agree_on(self, alike: npt.NDArray[np.bool_]) -> None:
        """Compare leaves in full whose :attr:`orders` differ between ranks (``alike`` is false)."""
        self._rotate(np.where(alike, self.orders, 0))

    def compared(self) -> None:
        """Record that this rank's last :meth:`look` has found the same on all ranks."""
        self._compared = self._found

    def may_wait(self, flat: FlatState, owned: Mapping[int, torch.Tensor]) -> bool:
        """True if an optimizer owns all trained leaves: then they do not change before its next step."""
        pointers, lengths = flat.pointers, flat.memory.lengths
        return bool(owned and self._trained) and all(
            holds_alone(owned.get(pointers[leaf]), self._types[leaf].nbytes, lengths[leaf]) for leaf in self._trained
        )

    def defer(self, flat: FlatState, turn: int, owned: Mapping[int, torch.Tensor]) -> DeferredSlices:
        """The slices of trained leaves at a turn, to be digested after the call."""
        starts = np.array(flat.pointers, dtype=np.int64)[self._trained]
        return DeferredSlices(self._slices, starts, [owned[address] for address in starts.tolist()], turn)

    def digest(self, flat: FlatState, turn: int, *, without_trained: bool = False) -> int:
        """One digest of all bytes that are compared at a turn."""
        whole = np.array(full_digests([flat.data[leaf] for leaf in self._in_full], self._threads), dtype=np.int64)
        slices = [self._others.digests(flat.pointers, turn)]
        slices += [] if without_trained else [self._slices.digests(flat.pointers, turn)]
        small = np.array([self._small.digest(flat.data, flat.pointers)], dtype=np.int64)
        return hash63(np.concatenate([self.orders, small, whole, *slices]).tobytes())

    def hashed(self, flat: FlatState) -> list[int]:
        """The large leaves in host memory that are read in full, though the setting asks for nothing."""
        return [leaf for leaf in self._in_full if leaf not in self._asked and not is_on_device(flat.data[leaf])]

    @property
    def in_full(self) -> Digests:
        """The leaves that are compared in full."""
        found: Digests = self._leaves[self.orders == 0]
        return found

    @property
    def rotating(self) -> Digests:
        """The leaves that are compared slice by slice."""
        found: Digests = self._leaves[self.orders > 0]
        return found

    @property
    def memory_orders(self) -> Digests:
        """The memory order of each rotating leaf."""
        return self.orders[self.orders > 0] & ~_IN_CALL

    def _rotate(self, orders: Digests) -> None:
        self.orders = orders
        is_in_call = (orders & _IN_CALL) > 0
        self._trained: list[int] = self._leaves[(orders > 0) & ~is_in_call].tolist()
        self._slices = RotatingSlices(self._trained, self._types)
        self._others = RotatingSlices(self._leaves[is_in_call].tolist(), self._types)
        self._in_full: list[int] = self._leaves[self._is_large & (orders == 0)].tolist()


def _are_writes_counted(data: torch.Tensor, storage: Any) -> bool:
    """True if a tensor's version counter counts most writes: neither numpy nor another process has its memory."""
    return not data.is_inference() and storage.resizable() and not storage.is_shared()
