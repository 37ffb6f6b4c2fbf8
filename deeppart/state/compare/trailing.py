"""Slices that are digested after ``checkpoint()`` has returned, and compared at the next checkpoint.

With ``capture="lazy"``, what an optimizer trains may not change before its next step. So the slices of those leaves
(:mod:`deeppart.state.compare.turns`) need not be read while training waits: the threads that make the deferred copies
read them too, and the ranks compare the outcome in the next checkpoint's reduction. Until then nothing counts as
compared.

What is read is held and read carefully, as the deferred copies are, and it counts only if nobody has written to it
meanwhile. A rank that has no outcome says that it lacks one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
import torch

from deeppart.state.compare.turns import Digests, Turns
from deeppart.state.memory.held import Holder, place_of, without_memory
from deeppart.state.tree.fingerprint import hash63
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.paths import Path

#: Bytes of slices that are read at a time: little enough to be hashed in the processor's cache.
_BATCH_BYTES = 1 << 20


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
