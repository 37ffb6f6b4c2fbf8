"""When each leaf was last compared in full, which ranks differ, and which checkpoints are *suspect* because of that.

Counted in turns: the calls of one session at which ranks compared their states. Unlike steps they only grow.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deeppart.comm import rank_names
from deeppart.model import ComparedEarlier
from deeppart.state.compare.slices import SLICES, slice_of

#: In place of a turn: never compared.
NEVER = -1
_Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Interval:
    """The turns between the last full comparison of a leaf and the one that found a difference.

    Attributes:
        after, before: these two turns; the turns between them are suspect.
        after_step, before_step: their steps.
        steps: the steps of the suspect turns.
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
    """The comparisons of the leaves of one structure; the same record on every rank that has them.

    Attributes:
        turns: for each leaf the turn at which it was last compared in full, or :data:`NEVER`.
    """

    def __init__(self, leaves: int) -> None:
        self.turns = np.full(leaves, NEVER, dtype=np.int64)
        self._slices = np.full(SLICES, NEVER, dtype=np.int64)
        #: For each leaf the memory order in which slices are compared, and the turn since when.
        self._orders = np.zeros(leaves, dtype=np.int64)
        self._since = np.full(leaves, NEVER, dtype=np.int64)

    def all_of(self, leaves: _Int64s, turn: int) -> None:
        """Record that all bytes of these leaves were compared, and that no other leaf is compared any more."""
        self.turns[:] = NEVER
        self.turns[leaves] = turn
        self._slices[:] = turn
        self._since[:], self._orders[:] = NEVER, 0

    def due(self, in_full: _Int64s, rotating: _Int64s, orders: _Int64s, turn: int, slices_of: Sequence[int]) -> None:
        """Record the comparison of one turn: leaves in full, and of others, with these memory orders, the slices of the
        turns ``slices_of``.
        """
        self.turns[in_full] = turn
        moved = self._orders[rotating] != orders
        others = np.ones(len(self._orders), dtype=np.bool_)
        others[rotating] = False
        self._orders[others] = 0
        self._since[rotating[moved]] = turn
        self._orders[rotating] = orders
        for each in slices_of:
            self._slices[slice_of(each)] = each
        oldest = self._slices.min()
        known = rotating[self._since[rotating] <= oldest]
        self.turns[known] = np.maximum(self.turns[known], oldest)


class Calls:
    """The turns of a session, 17 bytes each. All ranks record the same ones, so decisions from them are the same."""

    def __init__(self) -> None:
        self._turns, self._steps, self._saved = array("q"), array("q"), array("b")

    def note(self, turn: int, step: int, *, saved: bool) -> None:
        """Record that the ranks have compared their states at a turn; ``saved``: and save them at some level."""
        self._turns.append(turn)
        self._steps.append(step)
        self._saved.append(saved)

    def step(self, turn: int) -> int | None:
        """The step of a turn; None if the ranks compared nothing at it."""
        at = bisect_left(self._turns, turn)
        return self._steps[at] if at < len(self._turns) and self._turns[at] == turn else None

    def interval(self, after: int, before: int, before_step: int) -> Interval | None:
        """The saved checkpoints between two turns; None if there are none."""
        between = range(bisect_right(self._turns, after), bisect_left(self._turns, before))
        steps = tuple(self._steps[at] for at in between if self._saved[at])
        if not steps:
            return None
        after_step = self.step(after)
        return Interval(after, before, steps[0] if after_step is None else after_step, before_step, steps)


def compared_earlier(
    turns: _Int64s, skipped: npt.NDArray[np.bool_], now: int, calls: Calls
) -> tuple[ComparedEarlier, ...]:
    """For the manifest: the leaves that were not compared in full at this checkpoint's turn, grouped by step."""
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


# --- leaves whose replicas have diverged ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Divergence:
    """A leaf whose replicas were equal at the last full comparison, and are not any more.

    Attributes:
        path: its path.
        groups: the ranks grouped by equal bytes, largest group first; empty if that is not known.
        interval: the suspect checkpoints, which have one rank's bytes, or a mixture, for all; None if there are none.
    """

    path: str
    groups: tuple[tuple[int, ...], ...]
    interval: Interval | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.ranks}{self._suspect()}"

    @property
    def ranks(self) -> str:
        """Text that says which ranks differ from which."""
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
