"""Which leaves are the same on every rank, and which must be saved per rank.

Saving a leaf of one rank for all is only right while all ranks hold the same bytes; getting this wrong loses state
silently. So nothing is assumed: the ranks compare fingerprints (:mod:`deeppart.state.fingerprint`) in the reduction
that every checkpoint makes anyway, and only on a difference go through the leaves one by one. A leaf once found to
differ stays per rank as long as the structure stands.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart.comm.base import Comm, finish, rank_names
from deeppart.errors import LeafMismatchError, StructureMismatchError
from deeppart.state.comparing import COMPARED, Comparison
from deeppart.state.fingerprint import full_digest, hash63, hash_json
from deeppart.state.flatten import ArrayLeaf, FlatState, canonical_order, readable
from deeppart.state.leaves import LeafType, leaf_type
from deeppart.state.runs import encode_leaf_value, run_kind
from deeppart.state.structure import Alias, encode_tree
from deeppart.state.ties import find_aliases
from deeppart.state.values import Encoded, encode_key, encode_value

Flags = npt.NDArray[np.bool_]
#: Leaves that have come to differ whose ranks are found out.
_MOST_NAMED = 64
#: Names of the digests that a rank brings into the reduction of a checkpoint.
DIGESTS = ("structure", "types", "values", *COMPARED)


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


def describe(flat: FlatState) -> Layout:
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
    )
    _refresh(layout, flat)
    return layout


def _refresh(layout: Layout, flat: FlatState) -> None:
    """Renew what depends on which leaves are replicated."""
    aliases = layout.aliases
    layout.type_digests = np.array(
        [hash63(f"{kind}{aliases.get(index)}".encode()) for index, kind in enumerate(layout.types)], dtype=np.int64
    )
    own = layout.per_rank
    compared = [index for index in range(len(layout.types)) if not own[index] and index not in aliases]
    layout.comparison = Comparison(compared, flat, layout.types)


def _skeleton(flat: FlatState) -> list[Any]:
    """Paths and kinds of all leaves, in canonical order: what must be equal on all ranks."""
    entries: list[tuple[str, Any]] = [("a", leaf.path) for leaf in flat.arrays]
    entries += [("v", leaf.path) for leaf in flat.values]
    containers = [token for token in flat.tokens if isinstance(token, str)]
    return [containers, [[kind, [encode_key(key, "a dict key") for key in path]] for kind, path in entries]]


@dataclass(frozen=True, slots=True)
class Divergence:
    """A leaf that ranks held alike at the last checkpoint, and no longer do.

    Attributes:
        path: of the leaf.
        groups: the ranks that hold the same bytes, largest group first.
    """

    path: str
    groups: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        first, *rest = self.groups
        if len(first) == 1 and len(self.groups) > 2:
            return f"{self.path}: every rank holds other bytes"
        if len(rest) == 1 and len(rest[0]) == len(first):
            return f"{self.path}: {rank_names(first)} hold other bytes than {rank_names(rest[0])}"
        others = [rank for group in rest for rank in group]
        return f"{self.path}: {rank_names(others)} differ{'s' if len(others) == 1 else ''} from {rank_names(first)}"


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
        mode: Config.replicated: "auto", "all" or "none".
        timeout: seconds for each exchange.
    """

    def __init__(self, comm: Comm, mode: str, timeout: float) -> None:
        self._comm = comm
        self._mode = mode if comm.size > 1 else "all"
        self._timeout = timeout
        self.layout: Layout | None = None
        self.values: list[Encoded] = []

    def prepare(self, flat: FlatState) -> bool:
        """Take in the state to save (local). Returns whether its structure is new to this rank.

        Raises:
            UnsupportedLeafError: a value cannot be stored.
        """
        self.values = [encode_value(leaf.value, "") if _scalar(leaf.value) else _encode(leaf) for leaf in flat.values]
        if self.layout is not None and self.layout.stands_for(flat):
            return False
        self.layout = describe(flat)
        return True

    def digests(self, flat: FlatState, turn: int) -> dict[str, int]:
        """The fields this rank brings into the checkpoint's reduction; ``turn`` moves the sampled positions."""
        layout = self.layout
        fields = dict.fromkeys(DIGESTS, 0)
        if layout is None:
            return fields
        fields["structure"] = layout.structure_digest
        if self._mode != "none":
            fields["types"] = hash63(layout.type_digests[~layout.per_rank])
        if self._mode == "auto":
            own = layout.per_rank_values.tolist()
            values = [self._comparable(flat, index) for index, skip in enumerate(own) if not skip]
            fields["values"] = hash_json(values)
            fields |= layout.comparison.digests(flat, turn)
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

    def classify(self, flat: FlatState, turn: int, fresh: bool, what: str) -> Classified:
        """Find the leaves that differ between ranks (collective).

        Where leaves have come to differ that were alike before, all that count as replicated are compared in full: what
        has hit one may have hit others, at elements that were not sampled.

        Args:
            fresh: whether the structure is new on some rank: everything is then compared in full.

        Raises:
            LeafMismatchError: ``replicated="all"`` and leaves differ in shape or dtype.
        """
        layout = self.layout
        assert layout is not None
        if fresh:
            layout.per_rank[:] = self._mode == "none"
            layout.per_rank_values[:] = self._mode == "none"
        if self._mode == "none":
            _refresh(layout, flat)
            return Classified((), ())
        before = layout.per_rank.copy(), layout.per_rank_values.copy()
        self._drop_unequal_ties(layout, flat, what)
        untyped = self._unequal(layout.type_digests, what) & ~layout.per_rank
        if self._mode == "all":
            _refuse_unequal_types(flat, untyped, what)
            return Classified((), ())
        layout.per_rank |= untyped
        comparison = layout.comparison
        found = comparison.in_full(flat) if fresh else comparison.by_leaf(flat, turn)
        layout.per_rank |= self._unequal(found, what)
        if not fresh and (layout.per_rank & ~before[0]).any():
            layout.per_rank |= self._unequal(comparison.in_full(flat), what)
        layout.per_rank_values |= self._unequal_values(flat, what)
        _refresh(layout, flat)
        leaves = np.flatnonzero(layout.per_rank & ~before[0]).tolist()
        values = [flat.values[i].path for i in np.flatnonzero(layout.per_rank_values & ~before[1])]
        own = values if not fresh else [flat.arrays[i].path for i in leaves] + values
        return Classified(
            tuple(readable(path) for path in own), () if fresh else self._divergences(flat, leaves[:_MOST_NAMED], what)
        )

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

    def _divergences(self, flat: FlatState, leaves: list[int], what: str) -> tuple[Divergence, ...]:
        """Which ranks hold the same bytes of leaves that have come to differ (collective)."""
        mine = [f"{leaf_type(flat.data[leaf])} {full_digest(flat.data[leaf])}" for leaf in leaves]
        if not mine:
            return ()
        texts = finish(self._comm, self._comm.allgather(json.dumps(mine).encode()), what, self._timeout)
        everyone = [json.loads(text) for text in texts]
        found = []
        for column, leaf in enumerate(leaves):
            groups: dict[str, list[int]] = {}
            for rank, theirs in enumerate(everyone):
                groups.setdefault(theirs[column], []).append(rank)
            ordered = sorted(groups.values(), key=lambda ranks: (-len(ranks), ranks))
            found.append(Divergence(readable(flat.arrays[leaf].path), tuple(map(tuple, ordered))))
        return tuple(found)

    def _drop_unequal_ties(self, layout: Layout, flat: FlatState, what: str) -> None:
        """Ties that not all ranks have are not ties of the state."""
        digests = np.zeros(len(layout.types), dtype=np.int64)
        for index, alias in layout.aliases.items():
            digests[index] = hash63(str(alias).encode())
        for index in np.flatnonzero(self._unequal(digests, what)).tolist():
            layout.aliases.pop(index, None)
        _refresh(layout, flat)

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
