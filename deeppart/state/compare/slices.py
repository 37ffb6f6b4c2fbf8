"""Compares large leaves one slice at a time: all of each leaf within :data:`SLICES` turns.

At every turn the ranks compare one slice of each leaf, 1/63 of its bytes, and single words at :data:`PLACES` positions
spread evenly over it. After any 63 consecutive turns every byte has been compared. The words find a contiguous damaged
range sooner: the positions of 16 consecutive turns are at most 0.6 % of the leaf from each other. Bytes are hashed in
place, so a leaf must fill its memory without gaps; the order of its dimensions in memory does not matter as long as it
is the same on all ranks (:func:`memory_order`).

With ``capture="lazy"``, trained leaves may not change before the optimizer's next step. So the slices need not be read
while training waits: the threads that make the deferred copies read them (:class:`DeferredSlices`), and the ranks
compare the digests at the next checkpoint. Until then nothing counts as compared.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from deeppart.state.fingerprint import fraction, hash63, memory_over
from deeppart.state.memory import gather_memory
from deeppart.state.tensors import LeafType

Digests = npt.NDArray[np.int64]
#: Turns within which a leaf is compared in full.
SLICES = 63
#: Words of each leaf that are compared at every turn, besides its slice.
PLACES = 16
#: The memory order of a leaf in C order.
C_ORDER = 1
_WORD_BYTES = 8
#: Bytes of slices that are copied at a time to be digested: they stay in the processor's cache.
_BATCH_BYTES = 1 << 20
#: Close to 63 over the golden ratio and coprime to 63: successive multiples visit all slices, far from each other.
_STRIDE = 38


class RotatingSlices:
    """Digests of one slice of each leaf, a different one at each turn."""

    def __init__(self, leaves: Sequence[int], types: Sequence[LeafType]) -> None:
        self._leaves = np.array(leaves, dtype=np.int64)
        self._lengths = np.array([types[leaf].nbytes for leaf in leaves], dtype=np.int64)

    def digests(self, pointers: Sequence[int], turn: int) -> Digests:
        """For each leaf a digest of the bytes that are compared at a turn."""
        if not len(self._leaves):
            return np.zeros(0, dtype=np.int64)
        starts = np.array(pointers, dtype=np.int64)[self._leaves]
        memory, first = memory_over(starts, starts + self._lengths)
        starts -= first
        # A view with a word at each byte offset: not all leaves are aligned to words.
        count = len(memory) - _WORD_BYTES + 1
        everywhere: Digests = np.ndarray((count,), dtype=np.int64, buffer=memory.data, strides=(1,))
        words = np.ascontiguousarray(everywhere[starts[:, None] + self._places(turn)])
        begins, ends = self._slices(turn)
        return _digests(memory.data, starts + begins, starts + ends, words)

    def read_safely(self, starts: Digests, turn: int) -> Digests | None:
        """The same for addresses whose memory may be freed meanwhile; None if some of it was."""
        words = gather_memory((starts[:, None] + self._places(turn)).reshape(-1), _WORD_BYTES)
        if words is None:
            return None
        rows = words.view(np.int64).reshape(-1, PLACES)
        begins, ends = self._slices(turn)
        edges = np.concatenate([[0], np.cumsum(ends - begins)])
        firsts = np.unique(edges[:-1] // _BATCH_BYTES, return_index=True)[1].tolist()
        found = []
        for first, last in pairwise([*firsts, len(starts)]):
            octets = gather_memory((starts + begins)[first:last], (ends - begins)[first:last])
            if octets is None:
                return None
            places = edges[first : last + 1] - edges[first]
            found.append(_digests(octets.data, places[:-1], places[1:], rows[first:last]))
        return np.concatenate(found)

    def _slices(self, turn: int) -> tuple[Digests, Digests]:
        """Begin and end of each leaf's slice, in bytes."""
        widths = -(-self._lengths // SLICES)
        begins = np.minimum(slice_of(turn) * widths, self._lengths)
        return begins, np.minimum(begins + widths, self._lengths)

    def _places(self, turn: int) -> Digests:
        """Offsets of the words of each leaf, as rows."""
        spacing = self._lengths[:, None] / PLACES
        places = ((np.arange(PLACES) + fraction(turn)) * spacing).astype(np.int64)
        return np.minimum(places, self._lengths[:, None] - _WORD_BYTES)


def _digests(octets: memoryview, begins: Digests, ends: Digests, words: Digests) -> Digests:
    digest = xxhash.xxh3_64_intdigest
    parts = zip(begins.tolist(), ends.tolist(), words, strict=True)
    found = [digest(word.data, digest(octets[begin:end])) >> 1 for begin, end, word in parts]
    return np.array(found, dtype=np.int64)


class DeferredSlices:
    """The slices of one turn, digested after the call by the first thread that gets to it.

    They count only if the leaves were not written to meanwhile: the optimizer's tensors have the same addresses, and
    torch's version counters have not advanced.
    """

    def __init__(self, slices: RotatingSlices, starts: Digests, owners: Sequence[torch.Tensor], turn: int) -> None:
        self.turn = turn
        self._slices, self._starts = slices, starts
        self._guard = threading.Lock()
        # Guarded by the lock:
        self._owners = [(owner, owner._version, owner.data_ptr()) for owner in owners]
        self._is_read = False
        self._found: Digests | None = None

    def read(self) -> None:
        """Digest the slices, unless that was done."""
        with self._guard:
            if not self._is_read:
                self._is_read = True
                self._found = self._slices.read_safely(self._starts, self.turn)

    def settle(self) -> None:
        """Decide whether they count, and release the tensors. To be called before the optimizer's next step.

        By then, an operation that wrote to a leaf while it was read has ended, and was counted.
        """
        with self._guard:
            self._is_read = True
            for owner, version, place in self._owners:
                if (owner._version, owner.data_ptr()) != (version, place):
                    self._found = None
            self._owners = []

    def digest(self) -> int | None:
        """One digest of all slices; None if they do not count."""
        self.read()
        self.settle()
        return None if self._found is None else hash63(self._found.tobytes())


def slice_of(turn: int) -> int:
    """The number of the slice of each leaf that is compared at a turn, out of :data:`SLICES`."""
    return turn * _STRIDE % SLICES


def memory_order(data: Any) -> int:
    """A number for the order of a leaf's dimensions in host memory; 0 if there are gaps.

    It is not 0 only if the bytes at the leaf's address are exactly its bytes, each once, in some order.
    """
    if isinstance(data, torch.Tensor):
        if not data.is_cpu or data.is_conj() or data.is_neg():
            return 0
        if data.is_contiguous():
            return C_ORDER
        strides = data.stride()
    else:
        if data.flags.c_contiguous:
            return C_ORDER
        strides = tuple(stride // data.itemsize if stride % data.itemsize == 0 else -1 for stride in data.strides)
    dimensions = [(stride, length, at) for at, (stride, length) in enumerate(zip(strides, data.shape, strict=True))]
    reach, order = 1, []
    for stride, length, at in sorted(each for each in dimensions if each[1] != 1):
        if stride != reach or not length:
            return 0
        reach *= length
        order.append(at)
    return C_ORDER + 1 + (hash63(str(order).encode()) >> 3)
