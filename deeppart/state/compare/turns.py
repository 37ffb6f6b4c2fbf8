"""Large leaves that are compared a slice at a time: all of each leaf within :data:`TURNS` checkpoints.

At every turn the ranks compare one slice of each leaf, 1/63 of its bytes, and single words at :data:`PLACES` places
spread evenly over it. The slices are the proof: after any 63 turns in a row every byte has been compared. The words are
there to find sooner what is concentrated in one run: the places of 16 turns in a row are nowhere further apart than
0.6 % of the leaf. Bytes are hashed where they lie, so a leaf must fill its memory without gaps; in which order its
dimensions lie does not matter as long as it is the same on all ranks (:func:`memory_order`).

With ``capture="lazy"``, what an optimizer trains may not change before its next step. So those slices need not be read
while training waits: the threads that make the deferred copies read them too (:class:`TrailingSlices`), and the ranks
compare the outcome in the next checkpoint's reduction. Until then nothing counts as compared. It counts only if nobody
has written to the leaf meanwhile; a rank that has no outcome says that it lacks one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from deeppart.state.memory.copies import gather_memory, gather_ranges
from deeppart.state.memory.held import Holder, place_of, without_memory
from deeppart.state.tree.fingerprint import fraction, hash63, memory_over
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.leaves import LeafType
from deeppart.state.tree.paths import Path

Digests = npt.NDArray[np.int64]
#: Turns within which all of a leaf is compared; what is compared a checkpoint later
#: (:mod:`deeppart.state.compare.turns`) is within 64 checkpoints, too.
TURNS = 63
#: Words of each leaf that are compared at every checkpoint, besides its slice.
PLACES = 16
#: The memory order of a leaf in C order.
C_ORDER = 1
_WORD_BYTES = 8
#: Close to 63 over the golden ratio and prime to 63: successive multiples visit all slices, far from each other.
_STRIDE = 38
#: Bytes of slices that are read at a time: little enough to be hashed in the processor's cache.
_BATCH_BYTES = 1 << 20


class Turns:
    """Compares leaves in turn."""

    def __init__(self, numbers: Sequence[int], types: Sequence[LeafType]) -> None:
        self.numbers = np.array(numbers, dtype=np.int64)
        self._lengths = np.array([types[number].nbytes for number in numbers], dtype=np.int64)

    def digests(self, pointers: Sequence[int], turn: int) -> Digests:
        """One fingerprint per leaf, of what is compared at a turn."""
        if not len(self.numbers):
            return np.zeros(0, dtype=np.int64)
        starts = np.array(pointers, dtype=np.int64)[self.numbers]
        memory, first = memory_over(starts, starts + self._lengths)
        # A word from every byte on: leaves do not lie at multiples of a word everywhere.
        count = len(memory) - _WORD_BYTES + 1
        everywhere: Digests = np.ndarray((count,), dtype=np.int64, buffer=memory.data, strides=(1,))
        words = np.ascontiguousarray(everywhere[(starts - first)[:, None] + self._places(turn)])
        begins, ends = self._slices(turn)
        octets = memory.data
        return _digests(octets, starts - first + begins, starts - first + ends, words)

    def digests_carefully(self, starts: Digests, turn: int, first: int, last: int) -> Digests | None:
        """The same of some of the leaves, whose memory may be freed meanwhile; None if some of it is not mapped."""
        starts = starts[first:last]
        words = gather_memory((starts[:, None] + self._places(turn)[first:last]).reshape(-1), _WORD_BYTES)
        begins, ends = (each[first:last] for each in self._slices(turn))
        octets = gather_ranges(starts + begins, ends - begins)
        if words is None or octets is None:
            return None
        edges = np.cumsum(np.append(0, ends - begins))
        return _digests(octets.data, edges[:-1], edges[1:], words.view(np.int64).reshape(-1, PLACES))

    @property
    def widths(self) -> Digests:
        """Bytes of one slice of each leaf, at most."""
        return -(-self._lengths // TURNS)

    def _slices(self, turn: int) -> tuple[Digests, Digests]:
        """The beginning and the end of each leaf's slice, in bytes."""
        begins = np.minimum(slice_of(turn) * self.widths, self._lengths)
        return begins, np.minimum(begins + self.widths, self._lengths)

    def _places(self, turn: int) -> Digests:
        """The first bytes of the words of each leaf, as rows."""
        spacing = self._lengths[:, None] / PLACES
        places = ((np.arange(PLACES) + fraction(turn)) * spacing).astype(np.int64)
        return np.minimum(places, self._lengths[:, None] - _WORD_BYTES)


def _digests(octets: memoryview, begins: Digests, ends: Digests, words: Digests) -> Digests:
    digest = xxhash.xxh3_64_intdigest
    places = zip(begins.tolist(), ends.tolist(), words, strict=True)
    found = [digest(word.data, digest(octets[begin:end])) >> 1 for begin, end, word in places]
    return np.array(found, dtype=np.int64)


def slice_of(turn: int) -> int:
    """The slice, of the :data:`TURNS` slices of each leaf, that is compared at a turn."""
    return turn * _STRIDE % TURNS


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


# --- slices that are read after the call ------------------------------------------------------------------------------


class TrailingSlices:
    """One turn's slices of some leaves. Threads share the work; the outcome is for the training thread."""

    def __init__(self, turns: Turns, turn: int, flat: FlatState, owned: Mapping[int, torch.Tensor]) -> None:
        self.turn = turn
        self.numbers = turns.numbers
        self._turns = turns
        numbers, memory = turns.numbers.tolist(), flat.memory
        self.paths = [flat.arrays[number].path for number in numbers]
        self._starts = np.asarray(flat.pointers, dtype=np.int64)[turns.numbers]
        owners = [owned[address] for address in self._starts.tolist()]
        #: Share the version counters of the owners, whatever becomes of them.
        self._aliases = [owner.detach() for owner in owners]
        self._versions = [owner._version for owner in owners]
        self._holders: list[Holder] = [memory.holders[number] for number in numbers]
        self._places = [(memory.bases[number], memory.lengths[number]) for number in numbers]
        self._found = np.zeros(len(numbers), dtype=np.int64)
        self._guard = threading.Lock()
        #: Batches that have not been read; more than there are where one of them could not be.
        self._left = 1
        self._checked = self._settled = self._dropped = False
        #: Threads have been asked to read. Set by the training thread, which alone looks.
        self.begun = False
        #: Paths of leaves that were written to before the optimizer's step.
        self.spoiled: tuple[Path, ...] = ()

    def work(self) -> list[Callable[[], None]]:
        """The work to do, in parts that any thread may call, once each."""
        self.begun = True
        width = self._turns.widths
        batches = (np.cumsum(width) // _BATCH_BYTES).astype(np.int64)
        edges = [0, *(np.flatnonzero(np.diff(batches)) + 1).tolist(), len(width)]
        self._left = len(edges) - 1

        def part(first: int, last: int) -> Callable[[], None]:
            return lambda: self._read(first, last)

        return [part(first, last) for first, last in pairwise(edges)]

    def check(self) -> None:
        """All has been read that will be: does it count? Lets go of the memory."""
        with self._guard:
            holders, self._holders = self._holders, []
            if self._checked or self._dropped:
                return
            if [place_of(holder) for holder in holders] != self._places:
                self._left += 1
            self._look_at_versions()
            self._checked = True
            self._aliases = list(map(without_memory, self._aliases))

    def settle(self) -> None:
        """Look once more for writes: an operation that was writing while its leaf was read is counted when it ends.

        The first call after :meth:`check` decides: it comes before the optimizer's step.
        """
        with self._guard:
            if self._checked and not self._settled:
                self._look_at_versions()
                self._settled, self._aliases, self._versions = True, [], []

    def drop(self) -> None:
        """Give up what has not been read by now: it may change from here on."""
        with self._guard:
            if not self._checked:
                self._dropped, self._holders, self._aliases, self._versions = True, [], [], []

    @property
    def lacks(self) -> bool:
        """True if there is no outcome; called when there should be one."""
        self.settle()
        with self._guard:
            return self._dropped or not self._checked or self._left > 0

    @property
    def digests(self) -> Digests:
        """The outcome: one digest per leaf."""
        return self._found

    @property
    def digest(self) -> int:
        """One of all of it, the turn included."""
        return hash63(np.concatenate([[self.turn], self.numbers, self._found]).astype(np.int64).tobytes())

    def _read(self, first: int, last: int) -> None:
        try:
            found = self._turns.digests_carefully(self._starts, self.turn, first, last)
        except MemoryError:  # no reason for the checkpoint to fail: all is compared at the next one instead
            return
        if found is None:
            return
        with self._guard:
            self._found[first:last] = found
            self._left -= 1

    def _look_at_versions(self) -> None:
        spoiled = [
            path
            for path, alias, version in zip(self.paths, self._aliases, self._versions, strict=True)
            if alias._version != version
        ]
        if spoiled:
            self._left += 1
        self.spoiled += tuple(spoiled)
