"""Which leaves are the same on every rank, and which must be saved per rank.

Saving a leaf of one rank for all is only right while all ranks hold the same bytes; getting this wrong loses state
silently. So nothing is assumed: the ranks compare fingerprints (:mod:`deeppart.state.comparing`) in the reduction
that every checkpoint makes anyway, and only on a difference go through the leaves one by one. A leaf once found to
differ stays per rank as long as the structure stands. It is on record when all of each leaf was last compared
(:mod:`deeppart.state.compared`), so that what was saved in between can be called suspect.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart.comm.base import Comm, finish
from deeppart.errors import LeafMismatchError, StructureMismatchError
from deeppart.model import ComparedEarlier
from deeppart.state.compared import NEVER, Calls, ComparedRecord, Interval, compared_earlier
from deeppart.state.comparing import COMPARED, UNREAD, Comparison
from deeppart.state.divergence import Divergence, find_groups
from deeppart.state.divergence import describe as describe_divergence
from deeppart.state.fingerprint import SMALL_LEAF_BYTES, hash63, hash_json
from deeppart.state.flatten import ArrayLeaf, FlatState, canonical_order, readable
from deeppart.state.leaves import LeafType, leaf_type
from deeppart.state.runs import encode_leaf_value, run_kind
from deeppart.state.structure import Alias, encode_tree
from deeppart.state.ties import find_aliases
from deeppart.state.training import TrainingWatch
from deeppart.state.turns import TURNS
from deeppart.state.values import Encoded, encode_key, encode_value

Flags = npt.NDArray[np.bool_]
#: Names of the digests that a rank brings into the reduction of a checkpoint.
DIGESTS = ("structure", "types", "values", *COMPARED, UNREAD)


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
    unordered: set[int] = field(default_factory=set)

    def stands_for(self, flat: FlatState) -> bool:
        """Whether all of this still holds for a state."""
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
            self.tree, self.orders = encode_tree(flat.root), flat.orders  # only the order that `load` gives its dicts
        return True


def describe(flat: FlatState, always: bool) -> Layout:
    """Derive the layout of a new structure; every leaf counts as replicated until ranks have compared."""
    types = [leaf_type(data) for data in flat.data]
    layout = Layout(
        tokens=flat.tokens,
        token_types=flat.types,
        pointers=flat.pointers,
        orders=flat.orders,
        tree=encode_tree(flat.root),
        types=types,
        aliases=find_aliases(flat, types),
        structure_digest=hash_json(_skeleton(flat)),
        type_digests=np.zeros(0, dtype=np.int64),
        per_rank=np.zeros(len(types), dtype=np.bool_),
        per_rank_values=np.zeros(len(flat.values), dtype=np.bool_),
        comparison=Comparison([], flat, types),
        record=ComparedRecord(len(types)),
        arrays=flat.arrays,
    )
    _refresh(layout, flat, always)
    return layout


def _refresh(layout: Layout, flat: FlatState, always: bool) -> None:
    """Renew what depends on which leaves are replicated."""
    aliases = layout.aliases
    layout.type_digests = np.array(
        [hash63(f"{kind}{aliases.get(index)}".encode()) for index, kind in enumerate(layout.types)], dtype=np.int64
    )
    own = layout.per_rank
    compared = [index for index in range(len(layout.types)) if not own[index] and index not in aliases]
    layout.comparison = Comparison(
        compared, flat, layout.types, compared if always else (), layout.comparison.remembered
    )


def _skeleton(flat: FlatState) -> list[Any]:
    """Paths and kinds of all leaves, in canonical order: what must be equal on all ranks."""
    entries: list[tuple[str, Any]] = [("a", leaf.path) for leaf in flat.arrays]
    entries += [("v", leaf.path) for leaf in flat.values]
    containers = [token for token in flat.tokens if isinstance(token, str)]
    return [containers, [[kind, [encode_key(key, "a dict key") for key in path]] for kind, path in entries]]


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
        mode: Config.replicated: "auto", "all", "none" or "verify".
        timeout: seconds for each exchange.
    """

    def __init__(self, comm: Comm, mode: str, timeout: float) -> None:
        self._comm = comm
        self._mode = mode if comm.size > 1 else "all"
        self._timeout = timeout
        self._compares = self._mode in ("auto", "verify")
        self._always = self._mode == "verify"
        self._watch = TrainingWatch(SMALL_LEAF_BYTES) if self._mode == "auto" else None
        self._calls = Calls()
        #: Of leaves of earlier structures: path -> type, and the turn at which all of it was last compared.
        self._earlier: dict[Any, tuple[LeafType, int]] = {}
        self.layout: Layout | None = None
        self.values: list[Encoded] = []

    def close(self) -> None:
        """Watch the optimizers no more."""
        if self._watch is not None:
            self._watch.close()

    def forget_digests(self) -> None:
        """The state's memory has been written to in ways that torch does not count."""
        if self.layout is not None:
            self.layout.comparison.remembered.forget()

    def prepare(self, flat: FlatState) -> bool:
        """Take in the state to save (local). Returns whether its structure is new to this rank.

        Raises:
            UnsupportedLeafError: a value cannot be stored.
        """
        self.values = [encode_value(leaf.value, "") if _scalar(leaf.value) else _encode(leaf) for leaf in flat.values]
        if self.layout is not None and self.layout.stands_for(flat):
            return False
        self._remember_leaves()
        self.layout = describe(flat, self._always)
        return True

    def _remember_leaves(self) -> None:
        """The structure changes: what was replicated stays under watch at its path."""
        layout = self.layout
        if layout is None:
            return
        for leaf, kind, own in zip(layout.arrays, layout.types, layout.per_rank.tolist(), strict=True):
            last = layout.record.last(leaf.index)
            if not own and last != NEVER:
                self._earlier[leaf.path] = kind, last

    def digests(self, flat: FlatState, turn: int, *, fresh: bool) -> dict[str, int]:
        """The fields this rank brings into the checkpoint's reduction.

        Args:
            turn: decides what is compared of leaves that are compared in turn.
            fresh: everything is going to be compared in full anyway.
        """
        layout = self.layout
        fields = dict.fromkeys(DIGESTS, 0)
        if layout is None:
            return fields
        fields["structure"] = layout.structure_digest
        if self._mode != "none":
            fields["types"] = hash63(layout.type_digests[~layout.per_rank])
        if self._compares and not fresh:
            own = layout.per_rank_values.tolist()
            values = [self._comparable(flat, index) for index, skip in enumerate(own) if not skip]
            fields["values"] = hash_json(values)
            fields |= layout.comparison.digests(flat, turn, self._watch)
        return fields

    def check_structure(self, flat: FlatState, what: str) -> None:
        """Called on every rank when structures differ: raise the error that names the first difference.

        Raises:
            StructureMismatchError: on every rank.
        """
        mine = [f"{kind} {readable(path)}" for kind, path in _kinds(flat)]
        reference = json.loads(finish(self._comm, self._comm.broadcast(json.dumps(mine).encode()), what, self._timeout))
        texts = finish(self._comm, self._comm.allgather(_difference(reference, mine).encode()), what, self._timeout)
        found = [f"rank {rank} {text.decode()}" for rank, text in enumerate(texts) if text]
        raise StructureMismatchError(
            f"{what}: the state's structure differs between ranks",
            expected="the same containers, keys and leaves on every rank, as on rank 0",
            found="; ".join(found[:4]) or "container kinds that differ",
            where=f"reported to rank {self._comm.rank}",
            todo="give every rank the same keys (values, shapes and dtypes may differ), for example None where one has "
            "nothing",
        )

    def note(self, turn: int, step: int, *, saved: bool) -> None:
        """The ranks agree to make a checkpoint; ``saved``: at some level."""
        self._calls.note(turn, step, saved=saved)

    def alike(self, turn: int, *, unread_alike: bool) -> None:
        """All that was compared at a turn was the same on all ranks.

        Args:
            unread_alike: so were the leaves that needed no reading. If not, nothing is known of some ranks' leaves.
        """
        layout = self.layout
        if layout is None or not self._compares:
            return
        found = layout.comparison
        read = [number for number in found.full if number not in found.unread] if unread_alike else []
        vouched = [*found.small, *found.full]
        layout.record.some_of([*found.small, *read], vouched, found.in_turn, found.orders[found.ways > 0], turn)
        if found.numbers:
            self._calls.forget_before(min(int(layout.record.turns[found.numbers].min()), turn - TURNS))

    def compared_earlier(self, turn: int) -> tuple[ComparedEarlier, ...]:
        """The replicated leaves that were last compared in full before this turn."""
        layout = self.layout
        if layout is None or self._comm.size == 1:
            return ()
        turns = layout.record.turns.copy()
        for index, alias in layout.aliases.items():
            turns[index] = turns[alias.owner]
        return compared_earlier(turns.tolist(), np.flatnonzero(layout.per_rank).tolist(), turn, self._calls)

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
        known, vouched = self._known_before(layout, fresh), layout.record.vouched
        if fresh:
            layout.per_rank[:] = self._mode == "none"
            layout.per_rank_values[:] = self._mode == "none"
        if self._mode == "none":
            _refresh(layout, flat, self._always)
            return Classified((), ())
        before = layout.per_rank.copy(), layout.per_rank_values.copy()
        in_full = self._drop_unequal_ties(layout, flat, what) or fresh
        untyped = self._unequal(layout.type_digests, what) & ~layout.per_rank
        if self._mode == "all":
            _refuse_unequal_types(flat, untyped, what)
            return Classified((), ())
        layout.per_rank |= untyped
        in_full = self._compare_leaves(layout, flat, turn, in_full, what)
        layout.per_rank_values |= self._unequal_values(flat, what)
        if not fresh:
            known = np.where(self._refuted(layout, what) | (known == NEVER), known, vouched)
        if in_full:
            layout.record.all_of(layout.comparison.numbers, turn)
        else:
            self.alike(turn, unread_alike=False)
        if fresh or (layout.per_rank & ~before[0]).any():
            _refresh(layout, flat, self._always)
        return self._classified(flat, before, known, (turn, step), what)

    def _refuted(self, layout: Layout, what: str) -> Flags:
        """Leaves of which torch's word that they had not changed has turned out to be wrong on some rank (collective).

        What it has said at earlier checkpoints is not believed then.
        """
        flags = np.zeros(len(layout.types), dtype=np.int64)
        flags[list(layout.comparison.refuted)] = 1
        most = finish(self._comm, self._comm.maximum(flags), what, self._timeout)
        refuted: Flags = most > 0
        return refuted

    def _known_before(self, layout: Layout, fresh: bool) -> npt.NDArray[np.int64]:
        """For each leaf the turn at which all of it was last found alike on all ranks."""
        known = layout.record.turns.copy()
        known[layout.per_rank] = NEVER
        for leaf, kind in zip(layout.arrays, layout.types, strict=True) if fresh else ():
            earlier, turn = self._earlier.get(leaf.path, (kind, NEVER))
            if earlier == kind and known[leaf.index] == NEVER and not layout.per_rank[leaf.index]:
                known[leaf.index] = turn
        here = {leaf.path for leaf in layout.arrays}
        recent = int(known.max(initial=NEVER)) - TURNS
        self._earlier = {path: each for path, each in self._earlier.items() if path not in here and each[1] > recent}
        return known

    def _compare_leaves(self, layout: Layout, flat: FlatState, turn: int, in_full: bool, what: str) -> bool:
        """Find the leaves that differ (collective); returns whether all was compared in full for it."""
        comparison = layout.comparison
        if not in_full:
            orders, training = np.zeros((2, len(layout.types)), dtype=np.int64)
            orders[comparison.large], training[comparison.large] = comparison.orders, comparison.training
            unequal = self._unequal(orders, what), self._unequal(training, what)
            comparison.settle_ways(*(flags[comparison.large] for flags in unequal))
            differing = self._unequal(comparison.by_leaf(flat, turn), what) & ~layout.per_rank
            layout.per_rank |= differing
            in_full = bool(differing.any())
        if in_full:
            layout.per_rank |= self._unequal(comparison.in_full(flat), what)
        return in_full

    def _comparable(self, flat: FlatState, index: int) -> Encoded:
        """What is compared of a value: its encoding, or that of its entries in canonical order."""
        assert self.layout is not None
        return _in_order(flat.values[index].value) if index in self.layout.unordered else self.values[index]

    def _unequal_values(self, flat: FlatState, what: str) -> Flags:
        """Values that differ between ranks (collective); the order of a dict's entries is no difference."""
        layout = self.layout
        assert layout is not None
        digests = np.array([hash_json(self._comparable(flat, index)) for index in range(len(self.values))], np.int64)
        unequal = self._unequal(digests, what)
        asked = np.flatnonzero(unequal & ~layout.per_rank_values).tolist()
        if asked:
            ordered = [hash_json(_in_order(flat.values[index].value)) for index in asked]
            still = self._unequal(np.array(ordered, np.int64), what)
            same = [index for index, differs in zip(asked, still.tolist(), strict=True) if not differs]
            layout.unordered.update(same)
            unequal[same] = False
        return unequal

    def _classified(
        self,
        flat: FlatState,
        before: tuple[Flags, Flags],
        known: npt.NDArray[np.int64],
        now: tuple[int, int],
        what: str,
    ) -> Classified:
        """What is new, with the ranks and the checkpoints that it concerns (collective)."""
        layout = self.layout
        assert layout is not None
        most: npt.NDArray[np.int64] = finish(self._comm, self._comm.maximum(known), what, self._timeout)
        news = layout.per_rank & ~before[0]
        diverged = np.flatnonzero(news & (most != NEVER)).tolist()
        own = [flat.arrays[i].path for i in np.flatnonzero(news & (most == NEVER))]
        own += [flat.values[i].path for i in np.flatnonzero(layout.per_rank_values & ~before[1])]
        groups = find_groups(
            flat, diverged, lambda text: finish(self._comm, self._comm.allgather(text), what, self._timeout)
        )
        intervals: list[Interval | None] = [self._calls.interval(int(most[leaf]), *now) for leaf in diverged]
        return Classified(tuple(readable(path) for path in own), describe_divergence(flat, diverged, groups, intervals))

    def _drop_unequal_ties(self, layout: Layout, flat: FlatState, what: str) -> bool:
        """Ties that not all ranks have are not ties of the state (collective); returns whether there are any."""
        digests = np.zeros(len(layout.types), dtype=np.int64)
        for index, alias in layout.aliases.items():
            digests[index] = hash63(str(alias).encode())
        unequal = np.flatnonzero(self._unequal(digests, what)).tolist()
        for index in unequal:
            layout.aliases.pop(index, None)
        if unequal:
            _refresh(layout, flat, self._always)
        return bool(unequal)

    def _unequal(self, digests: npt.NDArray[np.int64], what: str) -> Flags:
        vector = np.concatenate([digests, -digests])
        most = finish(self._comm, self._comm.maximum(vector), what, self._timeout)
        unequal: Flags = most[: len(digests)] != -most[len(digests) :]
        return unequal


def _in_order(value: Any) -> Encoded:
    """A value's encoding, that of a dict with its entries in canonical order."""
    if isinstance(value, dict):
        return [run_kind(value), encode_leaf_value({key: value[key] for key in canonical_order(value)}, "")]
    return encode_leaf_value(value, "")


def _scalar(value: Any) -> bool:
    return type(value) in (int, float, bool, str, type(None))


def _encode(leaf: Any) -> Encoded:
    return encode_leaf_value(leaf.value, readable(leaf.path))


def _kinds(flat: FlatState) -> list[tuple[str, tuple[Any, ...]]]:
    kinds: list[tuple[str, tuple[Any, ...]]] = [("array", leaf.path) for leaf in flat.arrays]
    return kinds + [("value", leaf.path) for leaf in flat.values]


def _difference(reference: list[str], mine: list[str]) -> str:
    extra, lacking = set(mine) - set(reference), set(reference) - set(mine)
    texts = [f"has {entry}" for entry in mine if entry in extra][:3]
    texts += [f"lacks {entry}" for entry in reference if entry in lacking][:3]
    return ", ".join(texts)


def _refuse_unequal_types(flat: FlatState, untyped: Flags, what: str) -> None:
    leaves: list[ArrayLeaf] = [flat.arrays[index] for index in np.flatnonzero(untyped)]
    if leaves:
        raise LeafMismatchError(
            f'{what}: replicated="all", but leaves differ between ranks',
            expected="the same shape, dtype and ties on every rank",
            found=", ".join(f"{readable(leaf.path)} ({leaf_type(flat.data[leaf.index])} here)" for leaf in leaves[:4]),
            todo='use replicated="auto"',
        )
