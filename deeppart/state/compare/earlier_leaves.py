"""The memory of leaves whose structure has changed since: when all of each was last compared."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deeppart.state.compare.compared import NEVER
from deeppart.state.compare.state_layout import Flags, StateLayout
from deeppart.state.tree.fingerprint import SMALL_LEAF_BYTES
from deeppart.state.tree.leaves import LeafType
from deeppart.state.tree.paths import Path

#: Leaves that have left the state, of which it is remembered. Small ones go first: all of each was compared at the last
#: checkpoint that has it, so that none is suspect for it.
_MOST_LEAVES = 100_000


class EarlierLeaves:
    """Replicated leaves of earlier structures, by path: their type, and the turn at which all of it was compared."""

    def __init__(self) -> None:
        self._leaves: dict[Path, tuple[LeafType, int]] = {}

    def remember(self, layout: StateLayout) -> None:
        """The structure changes: what was replicated stays under watch at its path."""
        known = _turns(layout)
        for leaf, kind in zip(layout.arrays, layout.types, strict=True):
            if known[leaf.index] != NEVER:
                self._leaves[leaf.path] = kind, int(known[leaf.index])

    def known(self, layout: StateLayout, fresh: bool) -> tuple[npt.NDArray[np.int64], Flags]:
        """For each leaf the turn at which all of it was last found alike on all ranks; and whether its type is new."""
        known, per_rank = _turns(layout), layout.per_rank[layout.owners()]
        retyped = np.zeros(len(layout.types), dtype=np.bool_)
        for leaf, kind in zip(layout.arrays, layout.types, strict=True) if fresh else ():
            earlier, turn = self._leaves.get(leaf.path, (kind, NEVER))
            if known[leaf.index] == NEVER and not per_rank[leaf.index]:
                known[leaf.index], retyped[leaf.index] = turn, earlier != kind
        return known, retyped

    def settle(self, layout: StateLayout) -> None:
        """The leaves of a structure have been compared: from now on its record says when, also of those that differ."""
        here = {leaf.path for leaf in layout.arrays}
        gone = [each for each in self._leaves.items() if each[0] not in here]
        if len(gone) > _MOST_LEAVES:
            gone.sort(key=lambda each: each[1][0].nbytes > SMALL_LEAF_BYTES)  # stable: the oldest of each kind first
        self._leaves = dict(gone[-_MOST_LEAVES:])


def _turns(layout: StateLayout) -> npt.NDArray[np.int64]:
    """For each leaf the turn at which it was last found alike, by its layout; some rank may have undone a tie since."""
    owners = layout.owners()
    return np.where(layout.per_rank[owners], NEVER, layout.record.turns[owners])
