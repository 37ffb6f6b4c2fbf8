"""Data derived from a state's structure, so that ranks can compare it leaf by leaf; kept while the structure stays."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart.state.compare.history import ComparedRecord
from deeppart.state.document import Numbers, encode_path, encode_tree
from deeppart.state.fingerprint import hash63, hash_json
from deeppart.state.paths import ALL, AUTO, NONE, RANK0, VERIFY, Replication
from deeppart.state.tensors import LeafType, leaf_type
from deeppart.state.tree import (
    ARRAY,
    COMPOSITE,
    FORM,
    OBJECT,
    RANK_LOCAL,
    SHARDED,
    VALUE,
    Alias,
    ArrayLeaf,
    FlatState,
    ValueLeaf,
    find_aliases,
    memory_groups,
)
from deeppart.state.values import Encoded, encode_key

Flags = npt.NDArray[np.bool_]
#: Modes of leaves in the structure that all ranks share, in which what is rank 0's is not; the later, the stricter.
_STRICTNESS = (ALL, AUTO, VERIFY, NONE)


@dataclass(slots=True)
class StateLayout:
    """Data derived from a state's structure, kept while the structure stays.

    Attributes:
        tokens, token_types, pointers, orders: of the state this was made from.
        tree: JSON form of the tree (rank 0's goes into the checkpoint).
        numbers: those that leaves have in it.
        types: type of each leaf.
        own_aliases: leaves that are saved as views of others, going by this rank alone.
        own_groups: for each leaf the lowest number of those whose memory reaches into each other's on this rank, as of
            :func:`~deeppart.state.tree.ties.memory_groups`; each by itself where all leaves are treated alike.
        aliases: of ``own_aliases`` those that all ranks have, once they have compared.
        structure_digest: fingerprint of containers and keys, equal on all ranks of a sound job.
        differing: leaves of which the ranks that hold them were found, or are said, to have other bytes.
        per_rank_values: the same of values; and those that only this rank has.
        unordered: values that are dicts whose entries only stand in another order on some ranks: no difference.
        compared: true once the ranks have compared all of it.
        record: when all of each leaf was last compared.
        names: what identifies each leaf from one structure to the next.
        shared: how many of the arrays and values are in the structure that all ranks share. Those that follow are rank
            0's, this rank's alone, or shards of tensors.
        own_modes, modes: how each leaf is treated, going by its own path alone, and by all that it shares memory with,
            on any rank.
        forced_values: values that are per rank whatever the ranks hold.
        trusted_values: those that are taken to be equal, and not compared.
    """

    tokens: list[Any]
    token_types: list[Any]
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
    per_rank_values: Flags
    record: ComparedRecord
    names: list[Hashable]
    shared: tuple[int, int]
    before_shards: int
    own_modes: npt.NDArray[np.str_]
    modes: npt.NDArray[np.str_]
    forced_values: Flags
    trusted_values: Flags
    unordered: set[int] = field(default_factory=set)
    compared: bool = False

    @property
    def per_rank(self) -> Flags:
        """The leaves that are not the same on all ranks, or not known to be."""
        found = self.differing.copy()
        found[self.shared[0] :] = True
        return found

    def type_digests(self) -> npt.NDArray[np.int64]:
        """For each leaf that all ranks share a digest of its type and of what it is a view of; 0 if it differs."""
        ids = list(map(id, self.types[: self.shared[0]]))  # thousands of leaves share a handful of type objects
        of_types = {each: hash63(str(kind).encode()) for each, kind in zip(ids, self.types, strict=False)}
        found = np.fromiter(map(of_types.__getitem__, ids), dtype=np.int64, count=len(ids))
        for leaf, alias in self.aliases.items():
            if leaf < len(ids):
                found[leaf] = hash63(f"{self.types[leaf]}{alias}".encode())
        found[self.differing[: len(ids)]] = 0
        return found

    def take_numbers(self, flat: FlatState, numbers: Numbers) -> None:
        """Take the numbers that leaves have in documents, once the ranks have agreed on them."""
        self.numbers, self.tree = numbers, encode_tree(flat.root, numbers)

    def begin(self) -> None:
        """Take back what the ranks have agreed on: only what this rank holds counts."""
        self.aliases = dict(self.own_aliases)
        self.modes = _of_groups(self.own_modes, self.own_groups, self.shared[0], self.before_shards)

    def forget_differences(self) -> None:
        """Only what the user says counts, until the ranks have compared."""
        self.differing[:] = self.modes == NONE
        self.per_rank_values[:] = self.forced_values

    def untie(self, leaves: Collection[int]) -> None:
        """These are views of nothing on some rank, and so saved as leaves of their own."""
        for index in leaves:
            self.aliases.pop(index, None)

    @property
    def strictness(self) -> npt.NDArray[np.int64]:
        """Of the mode of each leaf that all ranks share: the larger, the stricter."""
        found: npt.NDArray[np.int64] = np.zeros(self.shared[0], dtype=np.int64)
        for strictness, mode in enumerate(_STRICTNESS):
            found[self.modes[: self.shared[0]] == mode] = strictness
        return found

    def take_strictness(self, strictness: npt.NDArray[np.int64]) -> bool:
        """Treat the leaves that all ranks share as the strictest rank does."""
        shared, asked = self.shared[0], self.own_modes.copy()
        asked[:shared] = np.array(_STRICTNESS)[strictness]
        self.modes = _of_groups(asked, self.own_groups, shared, self.before_shards)
        return bool((asked[:shared] != self.modes[:shared]).any())

    @property
    def trusted(self) -> Flags:
        """Leaves that are taken to be equal, and not compared."""
        trusted: Flags = self.modes == ALL
        return trusted

    def owners(self) -> npt.NDArray[np.int64]:
        """For each leaf the one as which it is compared: what it is tied to, or itself."""
        owners = np.arange(len(self.types))
        for index, alias in self.aliases.items():
            owners[index] = alias.owner
        return owners

    def stands_for(self, flat: FlatState, replication: Replication) -> bool:
        """True if all of this still holds for a state, except the order of its dicts, which is taken over."""
        # the same objects where the template fitted
        if flat.tokens is not self.tokens and flat.tokens != self.tokens:
            return False
        if flat.types is not self.token_types and flat.types != self.token_types:
            return False
        if flat.pointers != self.pointers:
            aliases = find_aliases(flat, self.types)
            groups = _groups(flat, self.types, replication)
            if aliases != self.own_aliases or not np.array_equal(groups, self.own_groups):
                return False
            self.pointers = flat.pointers
        if flat.orders != self.orders:
            # The order that `load` gives dicts, and by which ranks' OrderedDicts are told apart.
            self.tree, self.orders = encode_tree(flat.root, self.numbers), flat.orders
            self.structure_digest = _structure_digest(flat, replication)
        return True


def derive(flat: FlatState, replication: Replication) -> StateLayout:
    """Derive the layout of a new structure; every leaf counts as replicated until ranks have compared."""
    types = [leaf_type(data) for data in flat.data]
    aliases = find_aliases(flat, types)
    groups = _groups(flat, types, replication)
    own_modes = _modes(flat.arrays, replication)
    modes = _of_groups(own_modes, groups, flat.shared[0], flat.before_shards)
    value_modes = _modes(flat.values, replication)
    value_modes[flat.shared[1] :] = NONE
    boxes = {leaf: box for each in flat.sharded for leaf, box in zip(each.numbers, each.boxes, strict=True)}
    numbers = Numbers(tensors=range(len(flat.sharded)))
    return StateLayout(
        tokens=flat.tokens,
        token_types=flat.types,
        pointers=flat.pointers,
        orders=flat.orders,
        tree=encode_tree(flat.root, numbers),
        numbers=numbers,
        types=types,
        own_aliases=aliases,
        own_groups=groups,
        aliases=dict(aliases),
        structure_digest=_structure_digest(flat, replication),
        differing=modes == NONE,
        per_rank_values=value_modes == NONE,
        record=ComparedRecord(len(types)),
        names=[(leaf.path, boxes[leaf.index]) if leaf.index in boxes else leaf.path for leaf in flat.arrays],
        shared=flat.shared[:2],
        before_shards=flat.before_shards,
        own_modes=own_modes,
        modes=modes,
        forced_values=value_modes == NONE,
        trusted_values=value_modes == ALL,
    )


def _modes(leaves: Sequence[ArrayLeaf | ValueLeaf], replication: Replication) -> npt.NDArray[np.str_]:
    """Of each leaf, going by its path alone."""
    return np.array([_mode(leaf, replication) for leaf in leaves], dtype="<U8")


def _mode(leaf: ArrayLeaf | ValueLeaf, replication: Replication) -> str:
    mode = replication.mode(leaf.path)
    if mode == RANK0 and leaf.inside:  # a component alone cannot be rank 0's
        return replication.mode(leaf.path[: -leaf.inside])
    return mode


def _groups(flat: FlatState, types: list[LeafType], replication: Replication) -> npt.NDArray[np.int64]:
    """Leaves that share memory, if they may be treated in other ways."""
    return memory_groups(flat, types) if replication.uniform is None else np.arange(len(types))


def _of_groups(
    modes: npt.NDArray[np.str_], groups: npt.NDArray[np.int64], shared: int, before_shards: int
) -> npt.NDArray[np.str_]:
    """Leaves that share memory are saved and compared as the strictest of their modes asks for.

    What is rank 0's asks for nothing. What is not in the structure that all ranks share is nobody else's, whatever it
    shares memory with. Shards go by their tensor's mode.
    """
    asked = np.full(len(modes), -1)
    for strictness, mode in enumerate(_STRICTNESS):
        asked[modes == mode] = strictness
    strictest = np.full(len(modes), -1)
    np.maximum.at(strictest, groups, asked)
    found = strictest[groups]
    tied: npt.NDArray[np.str_] = np.where(found >= 0, np.array(_STRICTNESS)[found], modes)
    tied[shared:before_shards] = NONE
    tied[before_shards:] = modes[before_shards:]
    return tied


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
    if any(token is marker for marker in (ARRAY, VALUE, RANK_LOCAL, SHARDED, COMPOSITE, FORM)):
        return token
    return token.__name__ if isinstance(token, type) else encode_key(token, "a dict key")
