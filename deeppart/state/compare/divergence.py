"""When each leaf was last compared in full, which ranks differ, and which checkpoints are *suspect* for it.

Counted in turns, the calls of one session at which ranks have compared their states: unlike steps they only grow.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deeppart.comm import rank_names
from deeppart.model import ComparedEarlier
from deeppart.state.compare.turns import TURNS, slice_of
from deeppart.state.tree.fingerprint import full_digest
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.leaves import leaf_type

#: No turn: what was never compared.
NEVER = -1
_Int64s = npt.NDArray[np.int64]
#: Leaves that have come to differ whose ranks are found out.
MOST_NAMED = 64


@dataclass(frozen=True, slots=True)
class Interval:
    """Turns between the last comparison of all of a leaf and the one that found it to differ.

    Attributes:
        after, before: the two turns; those between them are suspect.
        after_step, before_step: their steps.
        steps: of the turns between them.
    """

    after: int
    before: int
    after_step: int
    before_step: int
    steps: tuple[int, ...]

    def name_steps(self) -> str:
        """``steps 11 to 15 are suspect``."""
        if len(self.steps) == 1:
            return f"step {self.steps[0]} is suspect"
        return f"steps {self.steps[0]} to {self.steps[-1]} are suspect"


class ComparedRecord:
    """Keeps account for the leaves of one structure; the same on every rank."""

    def __init__(self, leaves: int) -> None:
        self._full = np.full(leaves, NEVER, dtype=np.int64)
        self._slices = np.full(TURNS, NEVER, dtype=np.int64)
        #: The order in memory in which a leaf is compared in turn, and since when.
        self._orders = np.zeros(leaves, dtype=np.int64)
        self._since = np.full(leaves, NEVER, dtype=np.int64)

    def all_of(self, numbers: Collection[int], turn: int) -> None:
        """All bytes of these leaves were compared; nothing else is compared any more."""
        at = list(numbers)
        self._full[at] = turn
        self._slices[:] = turn
        self._since[:], self._orders[:] = NEVER, 0

    def in_full(self, whole: Collection[int], turn: int) -> None:
        """At a turn, every rank has read all bytes of some leaves, and found them alike."""
        self._full[list(whole)] = turn

    def in_part(self, in_turn: _Int64s, orders: _Int64s, turn: int) -> None:
        """A turn's slice of some leaves was compared, which lie in memory in these orders. Turns come in order."""
        moved = self._orders[in_turn] != orders
        out = np.ones(len(self._orders), dtype=np.bool_)
        out[in_turn] = False
        self._orders[out] = 0
        self._since[in_turn[moved]] = turn
        self._orders[in_turn] = orders
        self._slices[slice_of(turn)] = turn
        oldest = self._slices.min()
        known = in_turn[self._since[in_turn] <= oldest]
        self._full[known] = np.maximum(self._full[known], oldest)

    def last(self, leaf: int) -> int:
        """The turn at which all of a leaf was last compared, or :data:`NEVER`."""
        return int(self._full[leaf])

    @property
    def turns(self) -> _Int64s:
        """The same of every leaf."""
        return self._full


class _Turns:
    """Turns, ascending, and their steps: 16 bytes each."""

    def __init__(self) -> None:
        self._turns, self._steps = array("q"), array("q")

    def add(self, turn: int, step: int) -> None:
        """The next one."""
        self._turns.append(turn)
        self._steps.append(step)

    def between(self, after: int, before: int) -> array[int]:
        """The steps of those between two turns."""
        return self._steps[bisect_right(self._turns, after) : bisect_left(self._turns, before)]


class Calls:
    """The turns of a session. All ranks remember the same ones: what they decide from these, they decide alike."""

    def __init__(self) -> None:
        self._all, self._saved = _Turns(), _Turns()

    def note(self, turn: int, step: int, *, saved: bool) -> None:
        """The ranks have compared their states at a turn; ``saved``: and save them at some level."""
        self._all.add(turn, step)
        if saved:
            self._saved.add(turn, step)

    def step(self, turn: int) -> int | None:
        """The step of a turn; None if the ranks have compared nothing at it."""
        return next(iter(self._all.between(turn - 1, turn + 1)), None)

    def interval(self, after: int, before: int, before_step: int) -> Interval | None:
        """The checkpoints between two turns; None if there is none."""
        steps = tuple(self._saved.between(after, before))
        if not steps:
            return None
        after_step = self.step(after)
        return Interval(after, before, steps[0] if after_step is None else after_step, before_step, steps)


def compared_earlier(
    turns: _Int64s, skipped: npt.NDArray[np.bool_], now: int, calls: Calls
) -> tuple[ComparedEarlier, ...]:
    """For the manifest: the leaves that were not compared in full at the turn of the checkpoint, by step."""
    groups: dict[int | None, list[list[int]]] = {}
    earlier = np.flatnonzero((turns != now) & ~skipped)
    steps = {turn: calls.step(turn) for turn in np.unique(turns[earlier]).tolist()}
    for leaf, turn in zip(earlier.tolist(), turns[earlier].tolist(), strict=True):
        ranges = groups.setdefault(steps[turn], [])
        if ranges and sum(ranges[-1]) == leaf:
            ranges[-1][1] += 1
        else:
            ranges.append([leaf, 1])
    ordered = sorted(groups.items(), key=lambda group: -1 if group[0] is None else group[0])
    return tuple(ComparedEarlier(step, tuple((first, count) for first, count in ranges)) for step, ranges in ordered)


# --- leaves that ranks no longer hold alike ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Divergence:
    """A leaf that ranks held alike when all of it was last compared, and then not any more.

    Attributes:
        path: of the leaf.
        groups: the ranks that hold the same bytes, largest group first; empty where that was not found out.
        interval: the checkpoints since then: one rank's bytes, or a mixture, for all. None if there are none.
        healed: true if the ranks are equal again.
    """

    path: str
    groups: tuple[tuple[int, ...], ...]
    interval: Interval | None = None
    healed: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.ranks}{self._suspect()}"

    @property
    def ranks(self) -> str:
        """A text that says which ranks differ from which."""
        if self.healed:
            return "ranks differed for a while, and hold the same bytes again"
        if not self.groups:
            return "ranks differ"
        first, *rest = self.groups
        if len(first) == 1 and len(self.groups) > 2:
            return "every rank holds other bytes"
        if len(rest) == 1 and len(rest[0]) == len(first):
            return f"{rank_names(first)} hold{'s' * (len(first) == 1)} other bytes than {rank_names(rest[0])}"
        others = [rank for group in rest for rank in group]
        return f"{rank_names(others)} differ{'s' if len(others) == 1 else ''} from {rank_names(first)}"

    def _suspect(self) -> str:
        found = self.interval
        return "" if found is None else f"; {found.name_steps()}: last compared in full at step {found.after_step}"


def find_groups(
    flat: FlatState, leaves: Sequence[int], gather: Callable[[bytes], list[bytes]]
) -> list[tuple[tuple[int, ...], ...]]:
    """The groups of ranks that have the same bytes of each leaf (collective); leaves must be the same on every rank."""
    mine = [f"{leaf_type(flat.data[leaf])} {full_digest(flat.data[leaf])}" for leaf in leaves[:MOST_NAMED]]
    found: list[tuple[tuple[int, ...], ...]] = []
    everyone = [json.loads(text) for text in gather(json.dumps(mine).encode())] if mine else []
    for column in range(len(mine)):
        groups: dict[str, list[int]] = {}
        for rank, theirs in enumerate(everyone):
            groups.setdefault(theirs[column], []).append(rank)
        ordered = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks))
        found.append(tuple(map(tuple, ordered)))
    return found + [()] * (len(leaves) - len(mine))
