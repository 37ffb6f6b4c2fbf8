"""What is compared how: the digests by which ranks find out whether they hold a leaf alike.

Which leaves are compared at all is the business of :mod:`deeppart.state.classify`; here stands what each of them costs
and proves. Small leaves are compared in full at every checkpoint, large ones by samples.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from deeppart.state.fingerprint import SMALL_LEAF_BYTES, Sampler, SmallLeaves, full_digest
from deeppart.state.flatten import FlatState
from deeppart.state.leaves import LeafType

Digests = npt.NDArray[np.int64]
#: Names of the digests that :meth:`Comparison.digests` brings into the checkpoint's reduction.
COMPARED = ("small", "samples")


class Comparison:
    """Compares leaves of a state that are held to be replicated.

    Args:
        numbers: the leaves to compare, ascending.
        flat: the state; later ones have the same structure and types.
        types: type of every leaf of the state, by leaf number.
    """

    def __init__(self, numbers: Collection[int], flat: FlatState, types: list[LeafType]) -> None:
        small = [number for number in numbers if types[number].nbytes <= SMALL_LEAF_BYTES]
        large = [number for number in numbers if types[number].nbytes > SMALL_LEAF_BYTES]
        self._numbers, self._count = list(numbers), len(types)
        self._large = frozenset(large)
        self._small_leaves = SmallLeaves(small, flat.data, types)
        self._sampler = Sampler(large, flat.data)

    def digests(self, flat: FlatState, turn: int) -> dict[str, int]:
        """One digest per name in :data:`COMPARED`, of all the leaves together; ``turn`` moves what is sampled."""
        return {
            "small": self._small_leaves.digest(flat.data, flat.pointers),
            "samples": self._sampler.digest(flat.data, flat.pointers, turn),
        }

    def by_leaf(self, flat: FlatState, turn: int) -> Digests:
        """What :meth:`digests` compares, leaf by leaf; 0 for leaves that are not compared."""
        digests = np.zeros(self._count, dtype=np.int64)
        for number in self._numbers:
            if number not in self._large:
                digests[number] = full_digest(flat.data[number])
        for number, digest in self._sampler.digests(flat.data, flat.pointers, turn).items():
            digests[number] = digest
        return digests

    def in_full(self, flat: FlatState) -> Digests:
        """Digests of all bytes of every leaf; 0 for leaves that are not compared."""
        digests = np.zeros(self._count, dtype=np.int64)
        for number in self._numbers:
            digests[number] = full_digest(flat.data[number])
        return digests
