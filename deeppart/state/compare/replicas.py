"""Finds out which ranks have equal replicas of a leaf, by comparing digests between ranks.

A leaf of one rank may only be saved for all if all ranks have the same bytes; a mistake here loses state silently. So
nothing is assumed. Every leaf has its *holders*: all ranks, in the structure that they share; some ranks, for a shard;
this rank alone, for everything else. Leaves with the same holders form a set, and each set compares one digest of the
bytes due (:mod:`deeppart.state.compare.digests`) at every checkpoint: the set of all ranks in the reduction that every
checkpoint makes anyway, the others in a second one. After any difference, and for a new structure, all bytes of all
sets are compared leaf by leaf. A leaf that was found to differ is saved by each of its holders until the structure
changes. :mod:`deeppart.state.compare.history` records when each leaf was last compared in full, so that checkpoints in
between can be called suspect.
"""

from __future__ import annotations

import json
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.optim.swa_utils import AveragedModel

from deeppart.comm import Comm, finish
from deeppart.errors import LeafMismatchError, UnsupportedLeafError
from deeppart.model import ComparedEarlier
from deeppart.state.compare.digests import LeafDigests
from deeppart.state.compare.history import NEVER, Calls, Divergence, compared_earlier
from deeppart.state.compare.layout import Flags, StateLayout, derive
from deeppart.state.compare.optimizers import Trained, TrainingWatch
from deeppart.state.compare.slices import DeferredSlices
from deeppart.state.fingerprint import SMALL_LEAF_BYTES, full_digests, hash63, hash_json
from deeppart.state.paths import ALL, AUTO, NONE, ROTATE, VERIFY, Replication, readable
from deeppart.state.tensors import leaf_type
from deeppart.state.tree import ArrayLeaf, FlatState, Holder, in_order, numbers_in
from deeppart.state.values import Encoded, encode_value

_SCALARS = frozenset({int, float, bool, str, type(None)})
#: Names of the digests that each rank contributes to the reduction of a checkpoint.
DIGESTS = ("structure", "content")
#: Leaves no longer in the state whose last comparison is remembered, at most.
_MOST_REMEMBERED = 100_000
#: Diverged leaves whose ranks are determined, at most.
MOST_NAMED = 64
_NOTHING = np.iinfo(np.int64).min
_Numbers = npt.NDArray[np.int64]


def _averaged_leaves(flat: FlatState) -> frozenset[int]:
    """The leaves of averages of models, which ranks compute alike from what an optimizer trains."""
    models = (branch for branch in flat.objects if isinstance(branch.container, AveragedModel))
    return frozenset(leaf for branch in models for leaf in numbers_in(branch, ArrayLeaf))


@dataclass(frozen=True, slots=True)
class Differences:
    """The result of :meth:`Replicas.compare_in_full`; the same on all ranks.

    Attributes:
        per_rank: paths of leaves and values that differ, and were not known to be equal before.
        diverged: leaves that were equal before; values may become different.
    """

    per_rank: tuple[str, ...] = ()
    diverged: tuple[Divergence, ...] = ()


@dataclass(slots=True)
class _Set:
    """Leaves with the same holders.

    Attributes:
        number: the set's number in the job; that of all ranks is the first.
        leaves: this rank's numbers of them, in the same order on all holders.
        digests: digests of the leaves that are compared.
    """

    number: int
    leaves: list[int]
    digests: LeafDigests | None = None


class Replicas:
    """Keeps the layout of the state a job saves, and compares it across ranks. Used by the training thread alone.

    It digests whole leaves on ``threads`` threads.

    Attributes:
        replication: the user's ``replicated`` setting.
        calls: the turns of this session.
        layout: the layout of the state last given to :meth:`prepare`.
        values: its small values, encoded.
        compared_s: how long the leaves of all ranks were read at the last checkpoint.
    """

    def __init__(self, comm: Comm, setting: str | Mapping[str, str], timeout: float, threads: int = 1) -> None:
        self._comm, self._threads = comm, threads
        self._timeout = timeout
        self.replication = Replication(setting if comm.size > 1 else ALL)
        is_due = self.replication.uniform not in (ALL, NONE, VERIFY)
        self._watch = TrainingWatch(SMALL_LEAF_BYTES) if is_due else None
        self._trained: dict[int, Trained] = {}
        self.calls = Calls()
        self._layout: StateLayout | None = None
        #: The turns at which leaves of earlier structures were last found equal; and those of this structure, while its
        #: ties are agreed on again.
        self._earlier: dict[Hashable, int] = {}
        self._last: _Numbers | None = None
        self._sets: list[_Set] = []
        self._sets_of_job = 1
        #: For each leaf or value its column in a row of what all ranks share and all sets' shards; -1 if it has none.
        self._columns = np.zeros(0, dtype=np.int64)
        self._width = 0
        #: No state of this structure was compared yet. Digests have differed although the full comparison found equal
        #: bytes, because ranks disagree on what is trained or unchanged: from then on slices are compared within the
        #: call, and only those of trained leaves.
        self._is_new, self._unsteady = True, False
        #: Whether slices of the set of all ranks are digested after the call: as the ranks have agreed, and as this
        #: rank has last found; and the slices of an earlier call.
        self._defers = self._may_defer = False
        self._deferred: DeferredSlices | None = None
        self.values: list[Encoded] = []
        self.compared_s = 0.0
        self._hashed: set[int] = set()

    @property
    def layout(self) -> StateLayout:
        """The layout of the state last given to :meth:`prepare`."""
        if self._layout is None:
            raise RuntimeError("prepare() was not called yet")
        return self._layout

    @property
    def unlike_shards(self) -> frozenset[int]:
        """This rank's shards whose other holders have other bytes: each rank saves its own."""
        layout = self.layout
        found = layout.differing & (self._columns >= 0) & (layout.holders == Holder.SOME)
        return frozenset(np.flatnonzero(found).tolist())

    def close(self) -> None:
        """Stop watching the optimizers."""
        if self._watch is not None:
            self._watch.close()

    def prepare(self, flat: FlatState) -> bool:
        """Set the state to save (local). Returns whether its structure is new to this rank."""
        self.values = [encode_value(x.value, "") if type(x.value) in _SCALARS else _encode(x) for x in flat.values]
        if self._layout is not None and self._layout.stands_for(flat, self.replication):
            return False
        if self._layout is not None and self._layout.compared:
            self._remember(self._layout)
        self._layout, self._last = derive(flat, self.replication), None
        return True

    def _remember(self, layout: StateLayout) -> None:
        """Keep the history of replicated leaves, by name, when the structure changes."""
        for name, turn in zip(layout.names, self._last_alike().tolist(), strict=False):
            self._earlier.pop(name, None)
            if turn != NEVER:
                self._earlier[name] = turn
        most = _MOST_REMEMBERED + len(layout.names)
        if len(self._earlier) > most:
            self._earlier = dict(list(self._earlier.items())[-most:])

    def _last_alike(self) -> _Numbers:
        """For each leaf the turn at which it was last found equal on all ranks in full; NEVER for values."""
        layout = self.layout
        if self._last is not None:
            return self._last
        if layout.compared:
            return layout.record.turns[layout.owners()]
        turns = np.full(len(layout.holders), NEVER, dtype=np.int64)
        turns[: len(layout.names)] = [self._earlier.get(name, NEVER) for name in layout.names]
        return turns

    # --- at every checkpoint ------------------------------------------------------------------------------------------

    def digests(self, flat: FlatState, turn: int, owned: Mapping[int, torch.Tensor], *, fresh: bool) -> dict[str, int]:
        """This rank's contribution to the checkpoint's reduction, by :data:`DIGESTS`.

        ``owned``: address -> tensor, for tensors that only optimizers change, if slices may be digested after the call.
        """
        layout = self.layout
        self._trained = {} if self._watch is None else self._watch.trained()
        content = 0
        if not fresh:
            values = hash_json([self._comparable(flat, number) for number in self._compared()[1].tolist()])
            started = time.monotonic()
            shared = self._digest(self._sets[0], flat, turn, owned)
            self.compared_s = time.monotonic() - started
            content = hash63(f"{values} {shared} {self._defers} {self._earlier_slices()}".encode())
        return {"structure": layout.structure_digest, "content": content}

    def shards_differ(self, flat: FlatState, turn: int, what: str) -> bool:
        """Whether holders of the same shards have different digests (collective)."""
        if self._sets_of_job == 1:
            return False
        digests, held = np.zeros(self._sets_of_job, dtype=np.int64), np.zeros(self._sets_of_job, dtype=np.bool_)
        for each in self._sets[1:]:
            digests[each.number], held[each.number] = self._digest(each, flat, turn), True
        return bool(self._unequal_in_row(digests, held, what).any())

    def _digest(self, each: _Set, flat: FlatState, turn: int, owned: Mapping[int, torch.Tensor] | None = None) -> int:
        if each.digests is None:
            raise RuntimeError("no full comparison has been made yet")
        each.digests.look(flat, self._trained)
        if owned is None:
            return each.digests.digest(flat, turn)
        may_defer = each.digests.may_wait(flat, owned) and not self._unsteady
        if may_defer != self._may_defer:
            self._defers = self._may_defer = may_defer
        return each.digests.digest(flat, turn, without_trained=self._defers)

    def _earlier_slices(self) -> int:
        """The digest of the slices of an earlier call; if they do not count, a number that no other rank has."""
        if self._deferred is None:
            return 0
        found = self._deferred.digest()
        return -1 - self._comm.rank if found is None else found

    def defer(self, flat: FlatState, turn: int, owned: Mapping[int, torch.Tensor]) -> DeferredSlices | None:
        """The slices of this turn that will be digested after the call; None if there are none."""
        digests = self._sets[0].digests
        if self._defers and digests is not None:
            self._deferred = digests.defer(flat, turn, owned)
        return self._deferred

    def alike(self, turn: int) -> None:
        """Record that the bytes due at a turn were equal on all holders."""
        found = [each.digests for each in self._sets if each.digests is not None]
        in_full = np.concatenate([each.in_full for each in found])
        rotating = np.concatenate([each.rotating for each in found])
        orders = np.concatenate([each.memory_orders for each in found])
        for each in found:
            each.compared()
        slices_of = [] if self._defers else [turn]
        if self._deferred is not None:
            slices_of.append(self._deferred.turn)
            self._deferred = None
        self.layout.record.due(in_full, rotating, orders, turn, slices_of)

    def hashed(self, flat: FlatState) -> list[int]:
        """The large leaves in host memory that were read in full at this and the last checkpoint, though no setting
        asks for it.
        """
        before, digests = self._hashed, [each.digests for each in self._sets if each.digests is not None]
        self._hashed = {leaf for each in digests for leaf in each.hashed(flat)}
        return sorted(self._hashed & before)

    def compared_earlier(self, turn: int) -> tuple[ComparedEarlier, ...]:
        """The replicated leaves that were last compared in full before this turn."""
        if self._comm.size == 1:
            return ()
        layout = self.layout
        owners = layout.owners()[: len(layout.types)]
        return compared_earlier(layout.record.turns[owners], layout.per_rank[owners], turn, self.calls)

    # --- a new structure, or a difference -----------------------------------------------------------------------------

    def agree_on_ties(self, what: str) -> None:
        """Agree on the ties of the state, and on the modes of leaves (collective).
        A tie counts only if all ranks have it. But leaves that share memory on any rank get the strictest of their
        modes: on that rank, none of them may receive another rank's bytes.
        """
        layout = self.layout
        shared = layout.shared
        self._is_new, self._unsteady, self._deferred, self._hashed = True, False, None, set()
        self._last = self._last_alike()  # before ties that other ranks lack are dropped
        layout.begin()
        changed = self.replication.uniform is None
        while changed:  # a rank may have memory shared with a leaf that became stricter on another rank
            spreads = layout.take_modes(self._maximum(layout.modes[shared], what))
            changed = bool(self._maximum(np.array([spreads], np.int64), what)[0])
        ties = layout.tie_digests()[shared]
        layout.untie(shared[self._unequal_in_row(ties, np.ones(len(shared), np.bool_), what)].tolist())
        layout.forget_differences()

    def take_holders(self, held: Mapping[tuple[int, ...], list[int]] | None, what: str) -> None:
        """Set the holders of this rank's shards, at least two each (collective unless None: there are none)."""
        layout = self.layout
        shared, sets = len(layout.shared), [_Set(0, layout.shared[layout.shared < len(layout.types)].tolist())]
        every: list[tuple[tuple[int, ...], int]] = []
        if held is not None:
            mine = [[ranks, len(leaves)] for ranks, leaves in sorted(held.items()) if ranks[0] == self._comm.rank]
            texts = finish(self._comm, self._comm.allgather(json.dumps(mine).encode()), what, self._timeout)
            every = sorted((tuple(ranks), count) for text in texts for ranks, count in json.loads(text))
        starts = dict(zip((ranks for ranks, _ in every), np.cumsum([shared, *(n for _, n in every)]), strict=False))
        numbers = {ranks: number for number, (ranks, _) in enumerate(every, 1)}
        self._columns = np.full(len(layout.holders), -1, dtype=np.int64)
        self._columns[layout.shared] = np.arange(shared)
        for ranks, leaves in sorted((held or {}).items()):
            self._columns[leaves] = starts[ranks] + np.arange(len(leaves))
            sets.append(_Set(numbers[ranks], leaves))
        self._sets, self._sets_of_job = sets, 1 + len(every)
        self._width = shared + sum(count for _, count in every)

    def compare_in_full(
        self, flat: FlatState, turn: int, step: int, owned: Mapping[int, torch.Tensor], what: str
    ) -> Differences:
        """Find the leaves and values that differ between their holders (collective).

        Whatever damaged one leaf may have damaged others that were not due this time: so all are read.
        """
        layout, last = self.layout, self._last_alike()
        new = self._unequal(layout.type_digests(), what)
        trusted = np.flatnonzero(self._of_leaves(new) & layout.in_mode(ALL))
        _refuse_unequal_types(flat, trusted.tolist(), what)
        layout.differing |= self._of_leaves(new)
        new |= self._without_reordered(flat, self._unequal(self._full_digests(flat), what), what)
        layout.differing |= self._of_leaves(new)
        self._unsteady |= not (self._is_new or new.any())
        self._is_new, self._deferred = False, None
        self._look_anew(flat, owned, what)
        layout.record.all_of(self._compared()[0], turn)
        found = self._describe(flat, np.flatnonzero(new).tolist(), last, (turn, step), what)
        # Only now: if the call is refused before, the user gets no warning.
        layout.compared, self._last = True, None
        return found

    def _compared(self) -> tuple[_Numbers, _Numbers]:
        """The leaves, and the values, that are compared: with several holders, not known to differ, not trusted, and no
        aliases.
        """
        layout = self.layout
        found = (self._columns >= 0) & ~layout.differing & ~layout.in_mode(ALL)
        found[list(layout.aliases)] = False
        leaves, values = np.split(found, [len(layout.types)])
        return np.flatnonzero(leaves), np.flatnonzero(values) + len(leaves)

    def _full_digests(self, flat: FlatState) -> _Numbers:
        """For each leaf and value that is compared a digest of all of it; 0 for all others."""
        leaves, values = self._compared()
        found = np.zeros(len(self.layout.holders), dtype=np.int64)
        found[leaves] = full_digests([flat.data[leaf] for leaf in leaves.tolist()], self._threads)
        found[values] = [hash_json(self._comparable(flat, number)) for number in values.tolist()]
        return found

    def _look_anew(self, flat: FlatState, owned: Mapping[int, torch.Tensor], what: str) -> None:
        """Prepare the digests of the leaves that are compared from now on, and agree on which rotate (collective)."""
        layout, compared = self.layout, set(self._compared()[0].tolist())
        verified = np.flatnonzero(layout.in_mode(VERIFY)).tolist()
        averaged = np.zeros(len(layout.holders), dtype=np.bool_)
        averaged[list(_averaged_leaves(flat))] = True
        rotated = np.flatnonzero(layout.in_mode(ROTATE) | (layout.in_mode(AUTO) & averaged)).tolist()
        orders = np.zeros(len(layout.holders), dtype=np.int64)
        leaves_of = [[leaf for leaf in each.leaves if leaf in compared] for each in self._sets]
        for each, leaves in zip(self._sets, leaves_of, strict=True):
            counters = each.number == 0 and not self._unsteady  # writes through a sharded tensor count only there
            each.digests = LeafDigests(
                leaves, flat, layout.types, verified, rotated, counters=counters, threads=self._threads
            )
            each.digests.look(flat, self._trained)
            orders[leaves] = each.digests.orders
        unlike = self._of_leaves(self._unequal(orders, what))
        for each, leaves in zip(self._sets, leaves_of, strict=True):
            if each.digests is not None:
                each.digests.agree_on(~unlike[leaves])
                each.digests.compared()
        shared = self._sets[0].digests
        self._may_defer = shared is not None and shared.may_wait(flat, owned) and not self._unsteady
        self._defers = not self._maximum(np.array([not self._may_defer], np.int64), what)[0]

    def _comparable(self, flat: FlatState, number: int) -> Encoded:
        """The form in which a value is compared: its encoding, dicts in canonical order."""
        index = number - len(flat.arrays)
        return in_order(flat.values[index].value) if number in self.layout.unordered else self.values[index]

    def _without_reordered(self, flat: FlatState, unequal: Flags, what: str) -> Flags:
        """The row without the plain dicts that ranks have in different orders (collective)."""
        layout, first = self.layout, len(flat.arrays)
        asked = [number for number in layout.shared[unequal[: len(layout.shared)]].tolist() if number >= first]
        if asked:
            digests = np.array([hash_json(in_order(flat.values[each - first].value)) for each in asked], np.int64)
            still = self._unequal_in_row(digests, np.ones(len(asked), np.bool_), what)
            same = [number for number, differs in zip(asked, still.tolist(), strict=True) if not differs]
            layout.unordered.update(same)
            unequal[self._columns[same]] = False
        return unequal

    # --- describing differences ---------------------------------------------------------------------------------------

    def _describe(
        self, flat: FlatState, new: Sequence[int], last: _Numbers, now: tuple[int, int], what: str
    ) -> Differences:
        """Describe differing columns with their ranks and the suspect checkpoints (collective)."""
        layout, shared = self.layout, len(self.layout.shared)
        if not new:
            return Differences()
        # A leaf that was equal on all ranks is known to all of them, or its history starts over: the minimum decides.
        held = np.zeros(self._width, dtype=np.bool_)
        held[self._columns[self._columns >= 0]] = True
        turns = -self._maximum(np.where(held, -self._row(last), _NOTHING), what)
        leaves = dict(zip(self._columns.tolist(), range(len(last)), strict=True))
        # A tied leaf may have a longer history than its owner, if it was tied just now.
        found = set(new)
        tied = {
            leaf: each.owner
            for leaf, each in layout.aliases.items()
            if layout.holders[leaf] == Holder.ALL and each.owner in found
        }
        after = {column: int(turns[column]) for column in (*new, *tied)}
        after |= {leaf: after[owner] for leaf, owner in tied.items() if after[leaf] == NEVER}
        intervals = {turn: self.calls.interval(turn, *now) for turn in {*after.values()} - {NEVER}}
        diverged = sorted(column for column, turn in after.items() if turn != NEVER)
        of_all = flat.leaves
        paths = {column: readable(of_all[layout.shared[column]].path) for column in after if column < shared}
        groups: dict[int, dict[str, list[int]]] = {}
        if diverged or len(paths) < len(after):
            # Only the holders of shards know their paths.
            mine = [
                (each, readable(flat.arrays[leaves[each]].path)) for each in new if each >= shared and each in leaves
            ]
            digests = [(each, _digest_of(flat.data[leaves[each]])) for each in diverged[:MOST_NAMED] if each in leaves]
            message = json.dumps([mine, digests]).encode()
            for rank, text in enumerate(finish(self._comm, self._comm.allgather(message), what, self._timeout)):
                named, digested = json.loads(text)
                paths |= dict(named)
                for column, digest in digested:
                    groups.setdefault(column, {}).setdefault(digest, []).append(rank)
        lines = []
        for column in diverged:
            ranks = sorted(groups.get(column, {}).values(), key=lambda ranks: (-len(ranks), ranks))
            if len(ranks) != 1:  # an alias of a leaf that differs elsewhere is equal
                lines.append(Divergence(paths[column], tuple(map(tuple, ranks)), intervals[after[column]]))
        per_rank = dict.fromkeys(paths[column] for column in new if after[column] == NEVER)
        return Differences(tuple(per_rank), tuple(lines))

    # --- rows with a column for each leaf of all sets -----------------------------------------------------------------

    def _row(self, of_leaves: _Numbers) -> _Numbers:
        row = np.zeros(self._width, dtype=np.int64)
        held = self._columns >= 0
        row[self._columns[held]] = of_leaves[held]
        return row

    def _of_leaves(self, row: Flags) -> Flags:
        """A row's entry for each leaf; False for those that this rank alone has."""
        found: Flags = np.append(row, False)[self._columns]
        return found

    def _unequal(self, of_leaves: _Numbers, what: str) -> Flags:
        """A row that is true for leaves whose holders have different numbers (collective)."""
        held = np.zeros(self._width, dtype=np.bool_)
        held[self._columns[self._columns >= 0]] = True
        return self._unequal_in_row(self._row(of_leaves), held, what)

    def _unequal_in_row(self, values: _Numbers, held: Flags, what: str) -> Flags:
        """The columns in which ranks with ``held`` have different values (collective)."""
        both = np.concatenate([np.where(held, values, _NOTHING), np.where(held, -values, _NOTHING)])
        most = self._maximum(both, what)
        found: Flags = most[: len(values)] != -most[len(values) :]
        return found

    def _maximum(self, values: _Numbers, what: str) -> _Numbers:
        return finish(self._comm, self._comm.maximum(values), what, self._timeout)


def _encode(leaf: Any) -> Encoded:
    try:
        return encode_value(leaf.value, "")
    except UnsupportedLeafError:
        return encode_value(leaf.value, readable(leaf.path))  # the error that names the path


def _digest_of(data: Any) -> str:
    return f"{leaf_type(data)} {full_digests([data])[0]}"


def _refuse_unequal_types(flat: FlatState, leaves: Sequence[int], what: str) -> None:
    if leaves:
        named = [flat.arrays[leaf] for leaf in leaves[:4]]
        raise LeafMismatchError(
            f'{what}: replicated="all", but leaves differ between ranks',
            expected="the same shape, dtype and ties on every rank",
            found=", ".join(f"{readable(leaf.path)} ({leaf_type(flat.data[leaf.index])} here)" for leaf in named),
            todo='use replicated="auto"',
        )
