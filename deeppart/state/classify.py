"""Which leaves are the same on every rank, and which must be saved per rank.

Saving a leaf of one rank for all is only right while all ranks hold the same bytes; getting this wrong loses state
silently. So nothing is assumed: the ranks compare fingerprints (:mod:`deeppart.state.comparing`) in the reduction
that every checkpoint makes anyway, and only on a difference go through the leaves one by one. A leaf once found to
differ stays per rank as long as the structure stands. It is on record when all of each leaf was last compared
(:mod:`deeppart.state.compared`), so that what was saved in between can be called suspect.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from deeppart.comm.base import Comm
from deeppart.comm.waiting import finish
from deeppart.errors import LeafMismatchError, UnsupportedLeafError
from deeppart.model import ComparedEarlier
from deeppart.state.compared import NEVER, Calls, ComparedRecord, Interval, compared_earlier
from deeppart.state.comparing import COMPARED, TRAILING, UNREAD, Comparison
from deeppart.state.divergence import Divergence, find_groups
from deeppart.state.divergence import describe as describe_divergence
from deeppart.state.fingerprint import SMALL_LEAF_BYTES, hash63, hash_json
from deeppart.state.flatten import APART, ARRAY, OBJECT, VALUE, ArrayLeaf, FlatState, Path, canonical_order, readable
from deeppart.state.leaves import LeafType, leaf_type
from deeppart.state.replication import ALL, NONE, VERIFY, Replication
from deeppart.state.runs import encode_leaf_value, make_run, run_kind
from deeppart.state.structure import Alias, encode_path, encode_tree
from deeppart.state.ties import find_aliases
from deeppart.state.trailing import TrailingSlices
from deeppart.state.training import TrainingWatch
from deeppart.state.values import Encoded, encode_key, encode_value

Flags = npt.NDArray[np.bool_]
#: Leaves that have left the state, of which it is remembered when they were last compared.
_MOST_EARLIER = 10_000
#: Names of the digests that a rank brings into the reduction of a checkpoint.
DIGESTS = ("structure", "types", "values", *COMPARED, TRAILING, UNREAD)


@dataclass(slots=True)
class Layout:
    """What is derived from a state's structure, kept while the structure stands.

    Attributes:
        tokens, token_types, pointers, orders: of the state this was made from.
        tree: JSON form of the tree (rank 0's goes into the checkpoint).
        types: type of each leaf.
        aliases: leaves that share memory with another.
        structure_digest: fingerprint of containers and keys, equal on all ranks of a sound job.
        type_digests: fingerprint of each leaf's type and ties.
        per_rank, per_rank_values: what the ranks found to differ.
        unordered: values that are dicts whose entries only stand in another order on some ranks: no difference.
        comparison: what compares the leaves while they are held to be replicated.
        record: when all of each leaf was last compared.
        arrays: paths of the leaves.
        shared: how many of the arrays and values are in the structure that all ranks share. Those that follow are rank
            0's or stand apart, and are not compared.
        forced, forced_values: leaves and values that are per rank whatever the ranks hold.
        trusted, trusted_values: those that are taken to be equal, and not compared.
        verified: leaves that are compared in full every time.
    """

    tokens: list[Any]
    token_types: list[Any]
    pointers: array[int]
    orders: list[Any]
    tree: Any
    types: list[LeafType]
    aliases: dict[int, Alias]
    structure_digest: int
    type_digests: npt.NDArray[np.int64]
    per_rank: Flags
    per_rank_values: Flags
    comparison: Comparison
    record: ComparedRecord
    arrays: list[ArrayLeaf]
    shared: tuple[int, int]
    forced: Flags
    forced_values: Flags
    trusted: Flags
    trusted_values: Flags
    verified: frozenset[int]
    unordered: set[int] = field(default_factory=set)

    def stands_for(self, flat: FlatState, replication: Replication) -> bool:
        """Whether all of this still holds for a state, but the order of its dicts, which is taken over."""
        # the same objects where the template fitted
        if flat.tokens is not self.tokens and flat.tokens != self.tokens:
            return False
        if flat.types is not self.token_types and flat.types != self.token_types:
            return False
        if flat.pointers != self.pointers:
            if find_aliases(flat, self.types) != self.aliases:
                return False
            self.pointers = flat.pointers
        if flat.orders != self.orders:
            # The order that `load` gives dicts, and by which ranks' OrderedDicts are told apart.
            self.tree, self.orders = encode_tree(flat.root), flat.orders
            self.structure_digest = _structure_digest(flat, replication)
        return True


def describe(flat: FlatState, replication: Replication) -> Layout:
    """Derive the layout of a new structure; every leaf counts as replicated until ranks have compared."""
    types = [leaf_type(data) for data in flat.data]
    modes = _modes([leaf.path for leaf in flat.arrays], flat.shared[0], replication)
    value_modes = _modes([leaf.path for leaf in flat.values], flat.shared[1], replication)
    layout = Layout(
        tokens=flat.tokens,
        token_types=flat.types,
        pointers=flat.pointers,
        orders=flat.orders,
        tree=encode_tree(flat.root),
        types=types,
        aliases=find_aliases(flat, types),
        structure_digest=_structure_digest(flat, replication),
        type_digests=np.zeros(0, dtype=np.int64),
        per_rank=modes == NONE,
        per_rank_values=value_modes == NONE,
        comparison=Comparison([], flat, types),
        record=ComparedRecord(len(types)),
        arrays=flat.arrays,
        shared=flat.shared[:2],
        forced=modes == NONE,
        forced_values=value_modes == NONE,
        trusted=modes == ALL,
        trusted_values=value_modes == ALL,
        verified=frozenset(np.flatnonzero(modes == VERIFY).tolist()),
    )
    _refresh(layout, flat)
    return layout


def _modes(paths: list[Path], shared: int, replication: Replication) -> npt.NDArray[np.str_]:
    """The mode of each leaf; those outside the structure that all ranks share are nobody else's."""
    modes = np.full(len(paths), NONE, dtype="<U8")
    if replication.uniform is not None:
        modes[:shared] = replication.uniform
    else:
        modes[:shared] = [replication.mode(path) for path in paths[:shared]]
    return modes


def _refresh(layout: Layout, flat: FlatState) -> None:
    """Renew what depends on which leaves are replicated."""
    aliases = layout.aliases
    layout.type_digests = np.array(
        [hash63(f"{kind}{aliases.get(index)}".encode()) for index, kind in enumerate(layout.types)], dtype=np.int64
    )
    skipped = layout.per_rank | layout.trusted
    compared = [index for index in range(len(layout.types)) if not skipped[index] and index not in aliases]
    verified = layout.verified.intersection(compared)
    layout.comparison = Comparison(compared, flat, layout.types, verified, layout.comparison.remembered)


def _structure_digest(flat: FlatState, replication: Replication) -> int:
    """Of what must be equal on all ranks."""
    shared = flat.shared[2]
    orders = [
        [encode_path(path), [encode_key(key, "a dict key") for key in keys]]
        for place, path, keys in flat.ordered
        if place <= shared and replication.mode(path) != ALL
    ]
    return hash_json([_skeleton(flat.tokens[:shared]), orders] if orders else _skeleton(flat.tokens[:shared]))


def _skeleton(tokens: list[Any]) -> list[Any]:
    """Containers, keys and leaves in canonical order as JSON: what must be equal on all ranks.

    ``{"m": model}`` and ``{"m": model.state_dict()}`` are the same.
    """
    return [token if type(token) in (str, bool) else _token_text(token) for token in tokens if token is not OBJECT]


def _token_text(token: Any) -> Encoded:
    if token is ARRAY or token is VALUE or token is APART:
        return token
    return token.__name__ if isinstance(token, type) else encode_key(token, "a dict key")


@dataclass(frozen=True, slots=True)
class Classified:
    """What :meth:`Classifier.classify` found.

    Attributes:
        per_rank: paths of leaves and values that are found to differ for the first time, and were not alike before.
        diverged: leaves that were.
    """

    per_rank: tuple[str, ...]
    diverged: tuple[Divergence, ...]


class Classifier:
    """Keeps the layout of the state a job saves, and compares it across ranks.

    Args:
        comm: channel of the training thread.
        setting: Config.replicated: "auto", "all", "none" or "verify", or glob -> one of them or "rank0".
        timeout: seconds for each exchange.
    """

    def __init__(self, comm: Comm, setting: str | Mapping[str, str], timeout: float) -> None:
        self._comm = comm
        self._timeout = timeout
        self.replication = Replication(setting if comm.size > 1 else ALL)
        self._mode = self.replication.uniform
        self._compares = self._mode not in (ALL, NONE)
        self._watch = TrainingWatch(SMALL_LEAF_BYTES) if self._compares and self._mode != VERIFY else None
        self._calls = Calls()
        #: Of leaves of earlier structures: path -> type, and the turn at which all of it was last compared.
        self._earlier: dict[Any, tuple[LeafType, int]] = {}
        #: What the last checkpoint has left to compare, and the leaves compared in turn at it, with their orders.
        self._trailing: TrailingSlices | None = None
        self._trailed: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
        self.layout: Layout | None = None
        self.values: list[Encoded] = []

    @property
    def lacks(self) -> bool:
        """Whether this rank cannot say what the last checkpoint has left to compare."""
        return self._trailing is not None and self._trailing.lacks

    def close(self) -> None:
        """Watch the optimizers no more."""
        if self._watch is not None:
            self._watch.close()

    def forget_digests(self) -> None:
        """The state's memory has been written to in ways that torch does not count."""
        if self._trailing is not None:
            self._trailing.drop()
        if self.layout is not None:
            self.layout.comparison.remembered.forget()

    def prepare(self, flat: FlatState) -> bool:
        """Take in the state to save (local). Returns whether its structure is new to this rank.

        Raises:
            UnsupportedLeafError: a value cannot be stored.
        """
        self.values = [encode_value(leaf.value, "") if _scalar(leaf.value) else _encode(leaf) for leaf in flat.values]
        if self.layout is not None and self.layout.stands_for(flat, self.replication):
            return False
        self._remember_leaves()
        self.layout = describe(flat, self.replication)
        return True

    def _remember_leaves(self) -> None:
        """The structure changes: what was replicated stays under watch at its path."""
        layout = self.layout
        if layout is None:
            return
        for leaf, kind in zip(layout.arrays, layout.types, strict=True):
            alias = layout.aliases.get(leaf.index)
            owner = leaf.index if alias is None else alias.owner
            last = layout.record.last(owner)
            if not layout.per_rank[owner] and last != NEVER:
                self._earlier[leaf.path] = kind, last

    def digests(
        self, flat: FlatState, turn: int, *, fresh: bool, owned: Mapping[int, torch.Tensor] | None = None
    ) -> dict[str, int]:
        """The fields this rank brings into the checkpoint's reduction.

        Args:
            turn: decides what is compared of leaves that are compared in turn.
            fresh: everything is going to be compared in full anyway.
            owned: as of :meth:`Comparison.digests`.
        """
        layout = self.layout
        fields = dict.fromkeys(DIGESTS, 0)
        if layout is None:
            return fields
        fields["structure"] = layout.structure_digest
        if self._mode != "none":
            fields["types"] = hash63(layout.type_digests[~layout.per_rank])
        if self._compares and not fresh:
            own = (layout.per_rank_values | layout.trusted_values).tolist()
            values = [self._comparable(flat, index) for index, skip in enumerate(own) if not skip]
            fields["values"] = hash_json(values)
            fields |= layout.comparison.digests(flat, turn, self._watch, owned)
            if self._trailing is not None and not self._trailing.lacks:
                fields[TRAILING] = self._trailing.digest
        return fields

    def note(self, turn: int, step: int, *, saved: bool) -> None:
        """The ranks agree to make a checkpoint; ``saved``: at some level."""
        self._calls.note(turn, step, saved=saved)

    def alike(
        self, turn: int, flat: FlatState, owned: Mapping[int, torch.Tensor], *, unread_alike: bool
    ) -> TrailingSlices | None:
        """All that was compared at a turn was the same on all ranks, what trailed the turn before included.

        Args:
            owned: as given to :meth:`digests`.
            unread_alike: so were the leaves that needed no reading. If not, nothing is known of some ranks' leaves.

        Returns:
            What is to be read for this turn after the call, to be compared at the next one.
        """
        layout = self.layout
        if layout is None or not self._compares:
            return None
        self._count_trailing(layout)
        trailing = layout.comparison.trailing(flat, turn, owned)
        self._count(layout, turn, unread_alike, trailing)
        return trailing

    def _count(self, layout: Layout, turn: int, unread_alike: bool, trailing: TrailingSlices | None) -> None:
        """What was compared at a turn goes on record; with something still to be read, its slices only with that."""
        found = layout.comparison
        read = [number for number in found.full if number not in found.unread] if unread_alike else []
        layout.record.in_full([*found.small, *read], [*found.small, *found.full], turn)
        in_part = found.in_turn, found.orders[found.ways > 0]
        if trailing is None:
            layout.record.in_part(*in_part, turn)
        else:
            self._trailing, self._trailed = trailing, in_part

    def _count_trailing(self, layout: Layout) -> None:
        """What trailed was the same on all ranks."""
        if self._trailing is not None and self._trailed is not None:
            layout.record.in_part(*self._trailed, self._trailing.turn)
        self._trailing = self._trailed = None

    def compared_earlier(self, turn: int) -> tuple[ComparedEarlier, ...]:
        """The replicated leaves that were last compared in full before this turn."""
        layout = self.layout
        if layout is None or self._comm.size == 1:
            return ()
        turns = layout.record.turns.copy()
        for index, alias in layout.aliases.items():
            turns[index] = turns[alias.owner]
        return compared_earlier(turns, layout.per_rank, turn, self._calls)

    def classify(self, flat: FlatState, turn: int, step: int, fresh: bool, what: str) -> Classified:
        """Find the leaves that differ between ranks (collective).

        Where leaves have come to differ that were alike before, all that count as replicated are compared in full: what
        has hit one may have hit others, where nothing was compared this time.

        Args:
            fresh: whether the structure is new on some rank: everything is then compared in full.

        Raises:
            LeafMismatchError: ``replicated="all"`` and leaves differ in shape or dtype.
        """
        layout = self.layout
        assert layout is not None
        behind = self._compare_trailing(layout, fresh, what)
        (known, retyped), vouched = self._known_before(layout, fresh), layout.record.vouched
        if fresh:
            layout.per_rank[:] = layout.forced
            layout.per_rank_values[:] = layout.forced_values
        if self._mode == "none":
            _refresh(layout, flat)
            return Classified((), ())
        before = layout.per_rank.copy(), layout.per_rank_values.copy()
        if behind is not None:
            layout.per_rank |= behind
        in_full = self._drop_unequal_ties(layout, flat, what) or fresh or behind is not None
        untyped = self._unequal(layout.type_digests, layout.shared[0], what) & ~layout.per_rank
        _refuse_unequal_types(flat, untyped & layout.trusted, what)
        if self._mode == ALL:
            return Classified((), ())
        layout.per_rank |= untyped
        in_full = self._compare_leaves(layout, flat, turn, in_full, what)
        layout.per_rank_values |= self._unequal_values(flat, what)
        if not fresh:
            known = np.where(self._refuted(layout, what) | (known == NEVER), known, vouched)
        if in_full:
            layout.record.all_of(layout.comparison.numbers, turn)
        else:
            self._count(layout, turn, False, None)
        if fresh or (layout.per_rank & ~before[0]).any():
            _refresh(layout, flat)
        return self._classified(flat, before, (known, retyped), (turn, step), what)

    def _compare_trailing(self, layout: Layout, fresh: bool, what: str) -> Flags | None:
        """Compare what trailed the turn before, leaf by leaf (collective).

        Returns:
            The leaves that differed, or None if there were none. Without an outcome on some rank there are none, but
            all has to be compared in full instead.
        """
        trailing = self._trailing
        if trailing is None or fresh:
            self._trailing = self._trailed = None
            return None
        lacks = finish(self._comm, self._comm.maximum(np.array([trailing.lacks], np.int64)), what, self._timeout)
        if lacks[0]:
            self._trailing = self._trailed = None
            return np.zeros(len(layout.types), dtype=np.bool_)
        digests = np.zeros(len(layout.types), dtype=np.int64)
        digests[trailing.numbers] = trailing.digests
        differing = self._unequal(digests, layout.shared[0], what) & ~layout.per_rank
        if not differing.any():
            self._count_trailing(layout)
            return None
        self._trailing = self._trailed = None
        return differing

    def _refuted(self, layout: Layout, what: str) -> Flags:
        """Leaves of which torch's word that they had not changed has turned out to be wrong on some rank (collective).

        What it has said at earlier checkpoints is not believed then.
        """
        flags = np.zeros(len(layout.types), dtype=np.int64)
        flags[list(layout.comparison.refuted)] = 1
        most = finish(self._comm, self._comm.maximum(flags), what, self._timeout)
        refuted: Flags = most > 0
        return refuted

    def _known_before(self, layout: Layout, fresh: bool) -> tuple[npt.NDArray[np.int64], Flags]:
        """For each leaf the turn at which all of it was last found alike on all ranks; and whether its type is new."""
        known, retyped = layout.record.turns.copy(), np.zeros(len(layout.types), dtype=np.bool_)
        known[layout.per_rank] = NEVER
        for leaf, kind in zip(layout.arrays, layout.types, strict=True) if fresh else ():
            earlier, turn = self._earlier.get(leaf.path, (kind, NEVER))
            if known[leaf.index] == NEVER and not layout.per_rank[leaf.index]:
                known[leaf.index], retyped[leaf.index] = turn, earlier != kind
        here = {leaf.path for leaf in layout.arrays}
        gone = [each for each in self._earlier.items() if each[0] not in here]
        self._earlier = dict(gone[-_MOST_EARLIER:])
        return known, retyped

    def _compare_leaves(self, layout: Layout, flat: FlatState, turn: int, in_full: bool, what: str) -> bool:
        """Find the leaves that differ (collective); returns whether all was compared in full for it."""
        comparison = layout.comparison
        if not in_full:
            ways = np.zeros((3, len(layout.types)), dtype=np.int64)
            ways[:, comparison.large] = comparison.orders, comparison.training, comparison.trails
            unequal = tuple(self._unequal(each, layout.shared[0], what) for each in ways)
            comparison.settle_ways(*(flags[comparison.large] for flags in unequal))
            differing = self._unequal(comparison.by_leaf(flat, turn), layout.shared[0], what) & ~layout.per_rank
            layout.per_rank |= differing
            in_full = bool(differing.any())
        if in_full:
            layout.per_rank |= self._unequal(comparison.in_full(flat), layout.shared[0], what)
        return in_full

    def _comparable(self, flat: FlatState, index: int) -> Encoded:
        """What is compared of a value: its encoding, or that of its entries in canonical order."""
        assert self.layout is not None
        return _in_order(flat.values[index].value) if index in self.layout.unordered else self.values[index]

    def _unequal_values(self, flat: FlatState, what: str) -> Flags:
        """Values that differ between ranks (collective); the order of a plain dict's entries is no difference."""
        layout = self.layout
        assert layout is not None
        skipped = layout.per_rank_values | layout.trusted_values
        digests = np.zeros(len(skipped), dtype=np.int64)
        for index in np.flatnonzero(~skipped).tolist():
            digests[index] = hash_json(self._comparable(flat, index))
        unequal = self._unequal(digests, layout.shared[1], what)
        asked = np.flatnonzero(unequal & ~layout.per_rank_values).tolist()
        if asked:
            ordered = np.array([hash_json(_in_order(flat.values[index].value)) for index in asked], np.int64)
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
        now: tuple[int, int],
        what: str,
    ) -> Classified:
        """What is new, with the ranks and the checkpoints that it concerns (collective).

        A leaf of another type than before is news of its own, unless checkpoints are suspect for it.
        """
        layout = self.layout
        assert layout is not None
        turns, retyped = known
        # A leaf that was alike on all ranks is known to all of them, or it begins anew: the least decides.
        own_view = (2 * turns + ((turns != NEVER) & ~retyped))[: layout.shared[0]]
        least: npt.NDArray[np.int64] = -finish(self._comm, self._comm.maximum(-own_view), what, self._timeout)
        least = np.append(least, np.full(len(turns) - len(least), 2 * NEVER, dtype=np.int64))
        news = layout.per_rank & ~before[0]
        found: dict[int, Interval | None] = {}
        intervals: dict[int, Interval | None] = {}
        for leaf in np.flatnonzero(news & (least != 2 * NEVER)).tolist():
            after, same_type = divmod(int(least[leaf]), 2)
            if after not in found:
                found[after] = self._calls.interval(after, *now)
            if found[after] is not None or same_type:
                intervals[leaf] = found[after]
        diverged = list(intervals)
        own = [flat.arrays[i].path for i in np.flatnonzero(news).tolist() if i not in intervals]
        own += [flat.values[i].path for i in np.flatnonzero(layout.per_rank_values & ~before[1])]
        groups = find_groups(
            flat, diverged, lambda text: finish(self._comm, self._comm.allgather(text), what, self._timeout)
        )
        told = describe_divergence(flat, diverged, groups, list(intervals.values()))
        return Classified(tuple(readable(path) for path in own), told)

    def _drop_unequal_ties(self, layout: Layout, flat: FlatState, what: str) -> bool:
        """Ties that not all ranks have are not ties of the state (collective); returns whether there are any."""
        digests = np.zeros(len(layout.types), dtype=np.int64)
        for index, alias in layout.aliases.items():
            digests[index] = hash63(str(alias).encode())
        unequal = np.flatnonzero(self._unequal(digests, layout.shared[0], what)).tolist()
        for index in unequal:
            layout.aliases.pop(index, None)
        if unequal:
            _refresh(layout, flat)
        return bool(unequal)

    def _unequal(self, digests: npt.NDArray[np.int64], shared: int, what: str) -> Flags:
        """Which of the first ``shared`` digests differ between ranks (collective); no other rank has the others."""
        vector = np.concatenate([digests[:shared], -digests[:shared]])
        most = finish(self._comm, self._comm.maximum(vector), what, self._timeout)
        unequal: Flags = np.zeros(len(digests), dtype=np.bool_)
        unequal[:shared] = most[:shared] != -most[shared:]
        return unequal


def _in_order(value: Any) -> Encoded:
    """A value's encoding, that of dicts with their entries in canonical order, of ordered dicts in their own."""
    return encode_leaf_value(_ordered(value), "")


def _ordered(value: Any) -> Any:
    kind = run_kind(value)
    if kind is None:
        return value
    if isinstance(value, OrderedDict):
        keys: Any = list(value)  # two of them in other orders are not equal
    else:
        keys = canonical_order(value) if isinstance(value, dict) else range(len(value))
    return make_run(kind, keys, [_ordered(value[key]) for key in keys])


def _scalar(value: Any) -> bool:
    return type(value) in (int, float, bool, str, type(None))


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
