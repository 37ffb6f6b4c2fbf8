"""Large leaves of which the ranks compare one slice at a time: all of each leaf within :data:`SLICES` turns.

At every turn the ranks compare one slice of each leaf, 1/63 of its bytes, and single words at :data:`PLACES` places
spread evenly over it. The slices are the proof: after any 63 turns in a row every byte has been compared. The words are
there to find sooner what is concentrated in one run: the places of 16 turns in a row are nowhere further from each
other than 0.6 % of the leaf. Bytes are hashed where they lie, so a leaf must fill its memory without gaps; in which
order its dimensions lie does not matter as long as it is the same on all ranks (:func:`memory_order`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from deeppart.state.fingerprint import fraction, hash63, memory_over
from deeppart.state.tensors import LeafType

Digests = npt.NDArray[np.int64]
#: Turns within which all of a leaf is compared.
SLICES = 63
#: Words of each leaf that are compared at every turn, besides its slice.
PLACES = 16
#: The memory order of a leaf in C order.
C_ORDER = 1
_WORD_BYTES = 8
#: Close to 63 over the golden ratio and prime to 63: successive multiples visit all slices, far from each other.
_STRIDE = 38


class RotatingSlices:
    """Digests of one slice of each leaf, another one at every turn."""

    def __init__(self, leaves: Sequence[int], types: Sequence[LeafType]) -> None:
        self._leaves = np.array(leaves, dtype=np.int64)
        self._lengths = np.array([types[leaf].nbytes for leaf in leaves], dtype=np.int64)

    def digests(self, pointers: Sequence[int], turn: int) -> Digests:
        """One for each leaf, of what is compared of it at a turn."""
        if not len(self._leaves):
            return np.zeros(0, dtype=np.int64)
        starts = np.array(pointers, dtype=np.int64)[self._leaves]
        memory, first = memory_over(starts, starts + self._lengths)
        starts -= first
        # A word from every byte on: leaves do not lie at multiples of a word everywhere.
        count = len(memory) - _WORD_BYTES + 1
        everywhere: Digests = np.ndarray((count,), dtype=np.int64, buffer=memory.data, strides=(1,))
        words = np.ascontiguousarray(everywhere[starts[:, None] + self._places(turn)])
        widths = -(-self._lengths // SLICES)
        begins = np.minimum(slice_of(turn) * widths, self._lengths)
        ends = np.minimum(begins + widths, self._lengths)
        digest, octets = xxhash.xxh3_64_intdigest, memory.data
        parts = zip((starts + begins).tolist(), (starts + ends).tolist(), words, strict=True)
        found = [digest(word.data, digest(octets[begin:end])) >> 1 for begin, end, word in parts]
        return np.array(found, dtype=np.int64)

    def _places(self, turn: int) -> Digests:
        """The first bytes of the words of each leaf, as rows."""
        spacing = self._lengths[:, None] / PLACES
        places = ((np.arange(PLACES) + fraction(turn)) * spacing).astype(np.int64)
        return np.minimum(places, self._lengths[:, None] - _WORD_BYTES)


def slice_of(turn: int) -> int:
    """The slice, of the :data:`SLICES` slices of each leaf, that is compared at a turn."""
    return turn * _STRIDE % SLICES


def memory_order(data: Any) -> int:
    """A number for how a leaf lies in host memory: the same for the same order of dimensions; 0 if there are gaps.

    Not 0 only if the leaf's bytes are exactly what lies from its address on, each once, in some order.
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
