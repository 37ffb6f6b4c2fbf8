"""Leaves that ranks no longer hold alike: which ranks differ, and which checkpoints are suspect for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deeppart.comm.base import rank_names
from deeppart.state.compare.compared import NEVER, Calls, Interval
from deeppart.state.compare.state_layout import Flags, StateLayout
from deeppart.state.tree.fingerprint import full_digest
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.leaves import leaf_type
from deeppart.state.tree.paths import readable

#: Leaves that have come to differ whose ranks are found out.
MOST_NAMED = 64


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


def describe(
    flat: FlatState,
    leaves: Sequence[int],
    groups: Sequence[tuple[tuple[int, ...], ...]],
    since: Sequence[Interval | None],
    healed: Sequence[bool],
) -> tuple[Divergence, ...]:
    """One record per leaf."""
    paths = [readable(flat.arrays[leaf].path) for leaf in leaves]
    return tuple(Divergence(*each) for each in zip(paths, groups, since, healed, strict=True))


def suspect_intervals(
    layout: StateLayout, news: Flags, least: npt.NDArray[np.int64], calls: Calls, now: tuple[int, int]
) -> dict[int, Interval | None]:
    """Leaves that were alike and are not -> the checkpoints that are suspect for them, ascending."""
    found: dict[int, Interval | None] = {}
    intervals: dict[int, Interval | None] = {}
    # What is tied to another leaf may have a longer history than that one: it may have been tied just now.
    tied = [leaf for leaf, alias in layout.aliases.items() if news[alias.owner] and leaf < layout.shared[0]]
    for leaf in (*np.flatnonzero(news).tolist(), *tied):
        after, same_type = divmod(int(least[leaf]), 2)
        if after == NEVER:
            continue
        if after not in found:
            found[after] = calls.interval(after, *now)
        if found[after] is not None or same_type:
            intervals[leaf] = found[after]
    for leaf in tied:
        owner = layout.aliases[leaf].owner
        if leaf not in intervals and owner in intervals:
            intervals[leaf] = intervals[owner]
    return dict(sorted(intervals.items()))
