"""Data derived from a state's structure, to compare it between ranks leaf by leaf; kept while the structure stays."""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart.state.compare.history import ComparedRecord
from deeppart.state.document import Numbers, encode_path, encode_tree, outline
from deeppart.state.fingerprint import hash63, hash_json
from deeppart.state.paths import ALL, AUTO, NONE, RANK0, ROTATE, VERIFY, Replication
from deeppart.state.tensors import LeafType, leaf_type
from deeppart.state.tree import (
    Alias,
    ArrayLeaf,
    FlatState,
    Holder,
    Leaf,
    Node,
    ShardedLeaf,
    ValueLeaf,
    find_aliases,
    memory_groups,
)

Flags = npt.NDArray[np.bool_]
#: The strictness of each mode. Rank 0's leaves, which are not in the shared structure, have no influence on others.
_LEVELS = {mode: level for level, mode in enumerate((RANK0, ALL, ROTATE, AUTO, VERIFY, NONE))}


@dataclass(slots=True)
class StateLayout:
    """Data derived from a state's structure, kept while the structure stays.

    Attributes:
        root, array_types, pointers, orders: those of the state that this was last valid for.
        holders: of the state (:class:`~deeppart.state.tree.flat.FlatState`).
        outlines: of its structure, and what this rank alone has of it (:func:`outlines_of`).
        tree: JSON form of the tree (rank 0's goes into the checkpoint).
        numbers: the numbers in it.
        types: type of each leaf.
        own_aliases: leaves that are saved as views of others, according to this rank alone.
        own_groups: for each leaf the lowest number of the leaves with overlapping memory on this rank
            (:func:`~deeppart.state.tree.ties.memory_groups`); its own number if all leaves are treated alike, or for a
            value.
        aliases: those of ``own_aliases`` that all ranks have, once they have compared.
        structure_digest: fingerprint of containers and keys, equal on all ranks of a sound job.
        differing: leaves and values that were found, or are declared, to differ between the ranks that have them.
        unordered: values that are dicts with another order of entries on some ranks, which is not a difference.
        compared: true once the ranks have compared all of it.
        record: when each leaf was last compared in full.
        names: identifies each leaf from one structure to the next.
        shared: numbers of the leaves and values in the structure that all ranks share.
        own_modes, modes: how strictly each leaf or value is treated according to its path alone, and to all leaves that
            share its memory on any rank.
    """

    root: Node
    holders: npt.NDArray[np.int64]
    outlines: tuple[str, str]
    array_types: list[Any]
    pointers: array[int]
    orders: list[Any]
    tree: Any
    numbers: Numbers
    types: list[LeafType]
    own_aliases: dict[int, Alias]
    own_groups: npt.NDArray[np.int64]
    aliases: dict[int, Alias]
    structure_digest: int
    differing: Flags
    record: ComparedRecord
    names: list[Hashable]
    shared: npt.NDArray[np.int64]
    own_modes: npt.NDArray[np.int64]
    modes: npt.NDArray[np.int64]
    unordered: set[int] = field(default_factory=set)
    compared: bool = False

    @property
    def per_rank(self) -> Flags:
        """The leaves and values that differ between ranks, or may."""
        found: Flags = self.differing | (self.holders != Holder.ALL)
        return found

    @property
    def own(self) -> Flags:
        """Those of them, without shards, of which each rank saves its own."""
        found: Flags = self.per_rank & (self.holders != Holder.RANK0) & (self.holders != Holder.SOME)
        return found

    def type_digests(self) -> npt.NDArray[np.int64]:
        """For each shared leaf a digest of its type and alias; 0 if it differs, and for all others."""
        ids = list(map(id, self.types))  # thousands of leaves share a handful of type objects
        of_types = {each: hash63(str(kind).encode()) for each, kind in zip(ids, self.types, strict=True)}
        found = np.zeros(len(self.holders), dtype=np.int64)
        found[: len(ids)] = np.fromiter(map(of_types.__getitem__, ids), dtype=np.int64, count=len(ids))
        for leaf, alias in self.aliases.items():
            found[leaf] = hash63(f"{self.types[leaf]}{alias}".encode())
        found[self.per_rank] = 0
        return found

    def tie_digests(self) -> npt.NDArray[np.int64]:
        """For each leaf a digest of its alias, with which ranks compare their ties; 0 if it is none."""
        found = np.zeros(len(self.holders), dtype=np.int64)
        for leaf, alias in self.aliases.items():
            found[leaf] = hash63(str(alias).encode())
        return found

    def take_numbers(self, flat: FlatState, numbers: Numbers) -> None:
        """Set the leaf numbers in documents, once the ranks have agreed on them."""
        self.numbers, self.tree = numbers, encode_tree(flat.root, numbers)

    def begin(self) -> None:
        """Forget what the ranks have agreed on."""
        self.aliases = dict(self.own_aliases)
        self.modes = _of_groups(self.own_modes, self.own_groups, self.holders)

    def forget_differences(self) -> None:
        """Reset to the declared differences, until the ranks have compared."""
        self.differing[:] = self.in_mode(NONE)

    def untie(self, leaves: Collection[int]) -> None:
        """Save these leaves on their own, because some rank has not tied them."""
        for index in leaves:
            self.aliases.pop(index, None)

    def take_modes(self, modes: npt.NDArray[np.int64]) -> bool:
        """Set the modes of all shared leaves to the strictest of all ranks; returns whether any changed."""
        asked = self.own_modes.copy()
        asked[self.shared] = modes
        self.modes = _of_groups(asked, self.own_groups, self.holders)
        return bool((modes != self.modes[self.shared]).any())

    def in_mode(self, mode: str) -> Flags:
        """The leaves and values that are treated in a way."""
        found: Flags = self.modes == _LEVELS[mode]
        return found

    def owners(self) -> npt.NDArray[np.int64]:
        """For each leaf the one as which it is compared: its owner, or itself."""
        owners = np.arange(len(self.holders))
        for index, alias in self.aliases.items():
            owners[index] = alias.owner
        return owners

    def stands_for(self, flat: FlatState, replication: Replication) -> bool:
        """True if all of this is still valid for a state; a changed order of its dicts is taken over."""
        is_other = flat.root is not self.root  # the template did not fit
        if is_other and (flat.types != self.array_types or outlines_of(flat) != self.outlines):
            return False
        if flat.pointers != self.pointers:
            aliases = find_aliases(flat, self.types)
            groups = _groups(flat, self.types, replication)
            if aliases != self.own_aliases or not np.array_equal(groups, self.own_groups):
                return False
            self.pointers = flat.pointers
        if is_other or flat.orders != self.orders:
            # Outlines are without objects, and without the order that `load` gives dicts, and that distinguishes
            # OrderedDicts of ranks.
            self.root, self.tree, self.orders = flat.root, encode_tree(flat.root, self.numbers), flat.orders
            self.structure_digest = _structure_digest(flat, self.outlines, replication)
        return True


def derive(flat: FlatState, replication: Replication) -> StateLayout:
    """Derive the layout of a new structure; every leaf counts as replicated until ranks have compared it."""
    types = [leaf_type(data) for data in flat.data]
    aliases = find_aliases(flat, types)
    groups, leaves = _groups(flat, types, replication), flat.leaves
    own_modes = np.array([_LEVELS[_mode(leaf, replication)] for leaf in leaves], dtype=np.int64)
    modes = _of_groups(own_modes, groups, flat.holders)
    boxes = {leaf: box for each in flat.sharded for leaf, box in zip(each.numbers, each.boxes, strict=True)}
    numbers, outlines = Numbers(tensors=range(len(flat.sharded))), outlines_of(flat)
    return StateLayout(
        root=flat.root,
        holders=flat.holders,
        outlines=outlines,
        array_types=flat.types,
        pointers=flat.pointers,
        orders=flat.orders,
        tree=encode_tree(flat.root, numbers),
        numbers=numbers,
        types=types,
        own_aliases=aliases,
        own_groups=groups,
        aliases=dict(aliases),
        structure_digest=_structure_digest(flat, outlines, replication),
        differing=modes == _LEVELS[NONE],
        record=ComparedRecord(len(leaves)),
        names=[(leaf.path, boxes[leaf.index]) if leaf.index in boxes else leaf.path for leaf in flat.arrays],
        shared=np.flatnonzero(flat.holders == Holder.ALL),
        own_modes=own_modes,
        modes=modes,
    )


def _mode(leaf: ArrayLeaf | ValueLeaf, replication: Replication) -> str:
    """How strictly a leaf or value is treated, by its path alone."""
    mode = replication.mode(leaf.path)
    if mode == RANK0 and leaf.inside:  # a single component of a tensor cannot be rank 0's
        return replication.mode(leaf.path[: -leaf.inside])
    return mode


def _groups(flat: FlatState, types: list[LeafType], replication: Replication) -> npt.NDArray[np.int64]:
    """Groups of leaves that share memory; each leaf alone if all are treated alike."""
    found = np.arange(len(flat.holders))
    if replication.uniform is None:
        found[: len(types)] = memory_groups(flat, types)
    return found


def _of_groups(
    modes: npt.NDArray[np.int64], groups: npt.NDArray[np.int64], holders: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Give leaves that share memory the strictest of their modes.

    Leaves outside the shared structure stay rank-local, whatever they share memory with. Shards have the mode of their
    tensor.
    """
    strictest = np.full(len(modes), _LEVELS[RANK0])
    np.maximum.at(strictest, groups, modes)
    return np.select([holders == Holder.ALL, holders == Holder.SOME], [strictest[groups], modes], _LEVELS[NONE])


def _structure_digest(flat: FlatState, outlines: tuple[str, str], replication: Replication) -> int:
    """Digest of everything that must be equal on all ranks."""
    orders = [[encode_path(path), encode_path(keys)] for path, keys in flat.ordered if replication.mode(path) != ALL]
    return hash_json([outlines[0], orders])


def outlines_of(flat: FlatState) -> tuple[str, str]:
    """The outline of the structure that all ranks share, and what this rank alone has: its rank-local items and shards.

    As JSON texts: in Python ``(1,) == (True,)`` and ``0.0 == -0.0``, which are different keys.
    """
    own = [
        [encode_path(each.path), None if each.node is None else outline(each.node, _kind_of)]
        for each in flat.rank_local
    ]
    return json.dumps(outline(flat.root, _kind_of)), json.dumps([own, [leaf.boxes for leaf in flat.sharded]])


def _kind_of(leaf: Leaf) -> list[Any]:
    """The outline of a leaf: values may be of any kind, and arrays of any type, but sharded tensors are of one type."""
    if isinstance(leaf, ShardedLeaf):
        return ["sharded", str(leaf.kind)]
    return ["value"] if isinstance(leaf, ValueLeaf) else ["array"]
