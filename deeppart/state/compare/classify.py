"""The replicated leaves, and those that must be saved per rank.

Saving a leaf of one rank for all is only right while all ranks hold the same bytes; getting this wrong loses state
silently. So nothing is assumed: the ranks compare fingerprints (:mod:`deeppart.state.compare.comparing`) in the
reduction that every checkpoint makes anyway, and only on a difference go through the leaves one by one. A leaf once
found to differ stays per rank as long as the structure stands. It is on record when all of each leaf was last compared
(:mod:`deeppart.state.compare.divergence`), so that what was saved in between can be called suspect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deeppart.comm import Comm, finish, unequal
from deeppart.errors import LeafMismatchError, UnsupportedLeafError
from deeppart.model import ComparedEarlier
from deeppart.state.compare.comparing import COMPARED, TRAILING, UNREAD
from deeppart.state.compare.divergence import (
    NEVER,
    Calls,
    Divergence,
    Interval,
    compared_earlier,
    find_groups,
)
from deeppart.state.compare.optimizers import TrainingWatch
from deeppart.state.compare.state_layout import Flags, StateLayout, derive, refresh
from deeppart.state.compare.turns import TrailingSlices
from deeppart.state.document.ties import alias_digests
from deeppart.state.tree.fingerprint import SMALL_LEAF_BYTES, hash63, hash_json
from deeppart.state.tree.flat import ArrayLeaf, FlatState
from deeppart.state.tree.globs import ALL, NONE, VERIFY, Replication
from deeppart.state.tree.leaves import LeafType, leaf_type
from deeppart.state.tree.paths import Path, readable
from deeppart.state.tree.runs import encode_leaf_value, in_order, is_extended_value
from deeppart.state.tree.values import Encoded, encode_value

_SCALARS = frozenset({int, float, bool, str, type(None)})
#: Names of the digests that a rank brings into the reduction of a checkpoint.
DIGESTS = ("structure", "types", "values", *COMPARED, TRAILING, UNREAD)
#: Leaves that have left the state, of which it is remembered.
_MOST_LEAVES = 100_000


@dataclass(frozen=True, slots=True)
class Classified:
    """The result of :meth:`Classifier.classify`.

    Attributes:
        per_rank: paths of leaves and values that are found to differ for the first time, and were not alike before.
        diverged: leaves that were.
    """

    per_rank: tuple[str, ...]
    diverged: tuple[Divergence, ...]


class Classifier:
    """Keeps the layout of the state a job saves, and compares it across ranks.

    Attributes:
        calls: the checkpoints of this session, as far as they were noted.
        extended: true if readers before structure version 5 do not know something in the state.
        watch: knows which tensors are trained; None if nothing is compared in turn.
    """

    def __init__(self, comm: Comm, setting: str | Mapping[str, str], timeout: float) -> None:
        self._comm = comm
        self._timeout = timeout
        self.replication = Replication(setting if comm.size > 1 else ALL)
        self._mode = self.replication.uniform
        self._compares = self._mode not in (ALL, NONE)
        self.watch = TrainingWatch(SMALL_LEAF_BYTES) if self._compares and self._mode != VERIFY else None
        self.calls = Calls()
        self._earlier = EarlierLeaves()
        #: What the last checkpoint has left to compare, and the leaves compared in turn at it, with their orders.
        self._trailing: TrailingSlices | None = None
        self._trailed: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
        self.layout: StateLayout | None = None
        self.values: list[Encoded] = []
        self.extended = False

    @property
    def known(self) -> StateLayout:
        """The layout of the state that :meth:`prepare` took in last."""
        if self.layout is None:
            raise RuntimeError("no state was taken in yet")
        return self.layout

    @property
    def lacks(self) -> bool:
        """True if this rank cannot say what is left to compare from the last checkpoint."""
        return self._trailing is not None and self._trailing.lacks

    def close(self) -> None:
        """Watch the optimizers no more."""
        if self.watch is not None:
            self.watch.close()

    def forget_digests(self) -> None:
        """The state's memory has been written to in ways that torch does not count."""
        if self._trailing is not None:
            self._trailing.drop()
        if self.layout is not None:
            self.layout.comparison.cache.forget()

    def prepare(self, flat: FlatState) -> bool:
        """Take in the state to save (local). Returns whether its structure is new to this rank."""
        self.values = [encode_value(x.value, "") if type(x.value) in _SCALARS else _encode(x) for x in flat.values]
        self.extended = flat.extended or any(is_extended_value(each) for each in self.values if type(each) is list)
        if self.layout is not None and self.layout.stands_for(flat, self.replication):
            return False
        if self.layout is not None:
            self._earlier.remember(self.layout)
        self.layout = derive(flat, self.replication)
        return True

    def digests(
        self, flat: FlatState, turn: int, *, fresh: bool, owned: Mapping[int, torch.Tensor] | None = None
    ) -> dict[str, int]:
        """The fields this rank brings into the checkpoint's reduction."""
        layout = self.layout
        fields = dict.fromkeys(DIGESTS, 0)
        if layout is None:
            return fields
        fields["structure"] = layout.structure_digest
        if self._mode != NONE:
            fields["types"] = hash63(layout.type_digests[~layout.per_rank])
        if self._compares and not fresh:
            own = (layout.per_rank_values | layout.trusted_values).tolist()
            values = [self._comparable(flat, index) for index, skip in enumerate(own) if not skip]
            fields["values"] = hash_json(values)
            trained = {} if self.watch is None else self.watch.trained()
            fields |= layout.comparison.digests(flat, turn, trained, owned)
            if self._trailing is not None and not self._trailing.lacks:
                fields[TRAILING] = self._trailing.digest
        return fields

    def note(self, turn: int, step: int, *, saved: bool) -> None:
        """The ranks agree to make a checkpoint; ``saved``: at some level."""
        self.calls.note(turn, step, saved=saved)

    def alike(
        self, turn: int, flat: FlatState, owned: Mapping[int, torch.Tensor], *, unread_alike: bool
    ) -> TrailingSlices | None:
        """All that was compared at a turn was the same on all ranks, what trailed the turn before included."""
        layout = self.layout
        if layout is None or not self._compares:
            return None
        self._count_trailing(layout)
        trailing = layout.comparison.trailing(flat, turn, owned)
        self._count(layout, turn, unread_alike, trailing)
        return trailing

    def _count(self, layout: StateLayout, turn: int, unread_alike: bool, trailing: TrailingSlices | None) -> None:
        """Record what was compared at a turn; if something is still to be read, its slices are recorded only with
        that.
        """
        found = layout.comparison
        read = [number for number in found.full if number not in found.unread] if unread_alike else []
        layout.record.in_full([*found.small, *read], turn)
        in_part = found.in_turn, found.orders[found.ways > 0]
        if trailing is None:
            layout.record.in_part(*in_part, turn)
        else:
            self._trailing, self._trailed = trailing, in_part

    def _count_trailing(self, layout: StateLayout) -> None:
        """Record that what trailed was the same on all ranks."""
        if self._trailing is not None and self._trailed is not None:
            layout.record.in_part(*self._trailed, self._trailing.turn)
        self._trailing = self._trailed = None

    def compared_earlier(self, turn: int) -> tuple[ComparedEarlier, ...]:
        """The replicated leaves that were last compared in full before this turn."""
        layout = self.layout
        if layout is None or self._comm.size == 1:
            return ()
        owners = layout.owners()
        return compared_earlier(layout.record.turns[owners], layout.per_rank[owners], turn, self.calls)

    def classify(self, flat: FlatState, turn: int, step: int, fresh: bool, what: str) -> Classified:
        """Find the leaves that differ between ranks (collective).

        Where leaves have come to differ that were alike before, all that count as replicated are compared in full: what
        has hit one may have hit others, where nothing was compared this time.
        """
        layout = self.known
        behind = self._compare_trailing(layout, fresh, what)
        known = self._earlier.known(layout, fresh)
        if fresh:
            self._agree_on_ties(layout, what)
            layout.per_rank[:] = layout.forced
            layout.per_rank_values[:] = layout.forced_values
            refresh(layout, flat)
        if self._mode == NONE:
            return Classified((), ())
        before = layout.per_rank.copy(), layout.per_rank_values.copy()
        untyped = self._unequal(layout.type_digests, layout.shared[0], what) & ~layout.per_rank
        _refuse_unequal_types(flat, untyped & layout.trusted, what)
        if self._mode == ALL:
            return Classified((), ())
        layout.per_rank |= untyped
        in_full = fresh or behind is not None
        differed = self._differing(layout, flat, turn, what) if not in_full else behind
        in_full = in_full or bool(differed is not None and differed.any())
        if in_full:
            layout.per_rank |= self._unequal(layout.comparison.in_full(flat), layout.shared[0], what)
        layout.per_rank_values |= self._unequal_values(flat, what)
        if in_full:
            alike = [number for number in layout.comparison.numbers if not layout.per_rank[number]]
            layout.record.all_of(alike, turn)
        else:
            self._count(layout, turn, False, None)
        if fresh or (layout.per_rank & ~before[0]).any():
            refresh(layout, flat)
        found = self._classified(flat, before, known, differed, (turn, step), what)
        self._earlier.settle(layout)  # not before: a call that is refused on the way has told nobody
        return found

    def _compare_trailing(self, layout: StateLayout, fresh: bool, what: str) -> Flags | None:
        """Compare what trailed the turn before, leaf by leaf (collective)."""
        trailing = self._trailing
        if trailing is None:
            return None
        lacks = finish(self._comm, self._comm.maximum(np.array([trailing.lacks], np.int64)), what, self._timeout)
        if lacks[0]:
            self._trailing = self._trailed = None
            return np.zeros(len(layout.types), dtype=np.bool_)
        digests = np.zeros(len(layout.types), dtype=np.int64)
        if fresh:
            numbers = {leaf.path: leaf.index for leaf in layout.arrays}
            for path, digest in zip(trailing.paths, trailing.digests.tolist(), strict=True):
                if path in numbers:
                    digests[numbers[path]] = digest
        else:
            digests[trailing.numbers] = trailing.digests
        differing = self._unequal(digests, layout.shared[0], what) & ~layout.per_rank
        if not differing.any() and not fresh:
            self._count_trailing(layout)
        self._trailing = self._trailed = None
        return differing if differing.any() else None

    def _differing(self, layout: StateLayout, flat: FlatState, turn: int, what: str) -> Flags:
        """The leaves that differ in what is compared at a turn (collective)."""
        comparison = layout.comparison
        ways = np.zeros((3, len(layout.types)), dtype=np.int64)
        ways[:, comparison.large] = comparison.orders, comparison.training, comparison.trails
        unequal = tuple(self._unequal(each, layout.shared[0], what) for each in ways)
        comparison.settle_ways(*(flags[comparison.large] for flags in unequal))
        return self._unequal(comparison.by_leaf(flat, turn), layout.shared[0], what) & ~layout.per_rank

    def _comparable(self, flat: FlatState, index: int) -> Encoded:
        """The comparable form of a value: its encoding, or that of its entries in canonical order."""
        return in_order(flat.values[index].value) if index in self.known.unordered else self.values[index]

    def _unequal_values(self, flat: FlatState, what: str) -> Flags:
        """Values that differ between ranks (collective); the order of a plain dict's entries is no difference."""
        layout = self.known
        skipped = layout.per_rank_values | layout.trusted_values
        digests = np.zeros(len(skipped), dtype=np.int64)
        for index in np.flatnonzero(~skipped).tolist():
            digests[index] = hash_json(self._comparable(flat, index))
        unequal = self._unequal(digests, layout.shared[1], what)
        asked = np.flatnonzero(unequal & ~layout.per_rank_values).tolist()
        if asked:
            ordered = np.array([hash_json(in_order(flat.values[index].value)) for index in asked], np.int64)
            still = self._unequal(ordered, len(ordered), what)
            same = [index for index, differs in zip(asked, still.tolist(), strict=True) if not differs]
            layout.unordered.update(same)
            unequal[same] = False
        return unequal

    def _classified(
        self,
        flat: FlatState,
        before: tuple[Flags, Flags],
        known: tuple[npt.NDArray[np.int64], Flags],
        differed: Flags | None,
        now: tuple[int, int],
        what: str,
    ) -> Classified:
        """The new differences, with the ranks and the checkpoints that they concern (collective).

        A leaf of another type than before is news of its own, unless checkpoints are suspect for it.
        """
        layout = self.known
        turns, retyped = known
        # A leaf that was alike on all ranks is known to all of them, or its history starts over: the least decides.
        own_view = (2 * turns + ((turns != NEVER) & ~retyped))[: layout.shared[0]]
        least: npt.NDArray[np.int64] = -finish(self._comm, self._comm.maximum(-own_view), what, self._timeout)
        least = np.append(least, np.full(len(turns) - len(least), 2 * NEVER, dtype=np.int64))
        news = layout.per_rank & ~before[0]
        healed = np.zeros(len(news), dtype=np.bool_) if differed is None else differed & ~layout.per_rank
        news |= healed
        intervals = suspect_intervals(layout, news, least, self.calls, now)
        diverged = list(intervals)
        own = [flat.arrays[i].path for i in np.flatnonzero(news).tolist() if i not in intervals]
        own += [flat.values[i].path for i in np.flatnonzero(layout.per_rank_values & ~before[1])]
        groups = find_groups(
            flat, diverged, lambda text: finish(self._comm, self._comm.allgather(text), what, self._timeout)
        )
        # A view of a leaf that differs elsewhere is alike.
        again = healed[layout.owners()[diverged]].tolist() if diverged else []
        differ = [at for at, ranks in enumerate(groups) if len(ranks) != 1 or again[at]]
        found = [
            Divergence(readable(flat.arrays[diverged[at]].path), groups[at], intervals[diverged[at]], again[at])
            for at in differ
        ]
        return Classified(tuple(readable(path) for path in own), tuple(found))

    def _agree_on_ties(self, layout: StateLayout, what: str) -> None:
        """Find which ties are the state's, and how leaves are treated (collective).

        Ties that not all ranks have are not ties of the state. But leaves that share memory on any rank are treated as
        the strictest of them is: on that rank, none may get another rank's bytes.
        """
        layout.tie_anew()
        changed = self._mode is None
        while changed:  # one rank may share memory with what has become stricter on another one
            strictness = finish(self._comm, self._comm.maximum(layout.strictness), what, self._timeout)
            spreads = np.array([layout.take_strictness(strictness)], np.int64)
            changed = bool(finish(self._comm, self._comm.maximum(spreads), what, self._timeout)[0])
        digests = alias_digests(layout.aliases, len(layout.types))
        layout.untie(np.flatnonzero(self._unequal(digests, layout.shared[0], what)).tolist())

    def _unequal(self, digests: npt.NDArray[np.int64], shared: int, what: str) -> Flags:
        """The places of those of the first ``shared`` digests that differ between ranks (collective); no other rank
        has the others.
        """
        found: Flags = np.zeros(len(digests), dtype=np.bool_)
        found[:shared] = unequal(self._comm, digests[:shared], what, self._timeout)
        return found


def _encode(leaf: Any) -> Encoded:
    try:
        return encode_leaf_value(leaf.value, "")
    except UnsupportedLeafError:
        return encode_leaf_value(leaf.value, readable(leaf.path))  # the error that names the path


def _refuse_unequal_types(flat: FlatState, untyped: Flags, what: str) -> None:
    leaves: list[ArrayLeaf] = [flat.arrays[index] for index in np.flatnonzero(untyped)]
    if leaves:
        raise LeafMismatchError(
            f'{what}: replicated="all", but leaves differ between ranks',
            expected="the same shape, dtype and ties on every rank",
            found=", ".join(f"{readable(leaf.path)} ({leaf_type(flat.data[leaf.index])} here)" for leaf in leaves[:4]),
            todo='use replicated="auto"',
        )


# --- histories of leaves ----------------------------------------------------------------------------------------------


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
        self._leaves = dict(gone[-_MOST_LEAVES:])


def _turns(layout: StateLayout) -> npt.NDArray[np.int64]:
    """For each leaf the turn at which it was last found alike, by its layout; some rank may have undone a tie since."""
    owners = layout.owners()
    return np.where(layout.per_rank[owners], NEVER, layout.record.turns[owners])
