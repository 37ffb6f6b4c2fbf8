"""The JSON document in each part: the types of its rank's leaves, and its rank's values.

Rank 0's also has the structure document (:mod:`deeppart.state.document.structure`). Documents are encoded in the
background, so nothing in these records may change. Sharded tensors are not in the document of a part: the structure
document has their divisions, and the span table says which box a span belongs to.

Rank-local subtrees are in the document of each rank that has them. The shared structure has a placeholder for them in
lists, and nothing in dicts, whose other keys the ranks share. :func:`of_rank` combines both into a rank's state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart._gc import collection_paused
from deeppart.errors import CorruptFileError, short
from deeppart.model import ComparedEarlier
from deeppart.part import parse_json
from deeppart.state.document.structure import Structure
from deeppart.state.document.structure_json import (
    CODES,
    Numbers,
    SavedTensor,
    check_aliases,
    check_nesting,
    checked_type,
    decode_alias,
    decode_path,
    decode_structure,
    decode_tree,
    encode_path,
    encode_structure,
    encode_tree,
)
from deeppart.state.paths import Path, id_key, readable
from deeppart.state.tensors import LeafType
from deeppart.state.tree import DICTS, Alias, Branch, FlatState, LeafNumbers, Node, RankLocal
from deeppart.state.values import Encoded, decode_value

_DICT_CODES = frozenset(CODES[kind] for kind in DICTS)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class FileNumbers:
    """Maps the numbers that leaves have on one rank to their numbers in files.

    In files the leaves of the structure document come first: those that all ranks share, those that rank 0 saves for
    all, and global tensors. Rank-local leaves follow.

    Attributes:
        described: how many arrays and values of this rank are in the structure document, without global tensors.
        arrays, values: numbers in files of arrays and values; for a shard, the number of its tensor.
        boxes: number of the box of each shard; 0 for every other array.
    """

    described: tuple[int, int]
    arrays: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.int64]

    @classmethod
    def as_they_are(cls, arrays: int, values: int) -> FileNumbers:
        """For a state that is entirely in the structure document and has no sharded tensors."""
        return cls((arrays, values), np.arange(arrays), np.arange(values), np.zeros(arrays, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class RankLocalItems:
    """The rank-local items of one rank (:mod:`deeppart.state.document.part_document`).

    Attributes:
        trees: JSON form of the trees.
        rank0: paths of items that rank 0 saves for all ranks.
        anywhere: true if any rank has rank-local items.
    """

    trees: list[Any]
    rank0: list[Any]
    anywhere: bool


@dataclass(frozen=True, slots=True)
class PartDocument:
    """The document of one rank's part, without its bytes.

    Attributes:
        tree: JSON form of the tree that all ranks share.
        types: type of each leaf on this rank.
        aliases: leaves that share memory.
        per_rank, per_rank_values: which leaves and values differ between ranks; no shard does.
        values: encoded values of this checkpoint.
        with_structure: true for rank 0, whose part has the structure.
        compared: for the manifest: the replicated leaves that were last compared in full before this step.
        rank_local: the rank-local items of this rank.
        tensors: the global tensors, in the order of their numbers.
        numbers: numbers of the leaves in files; None if they are the same as on this rank.
    """

    tree: Any
    types: list[LeafType]
    aliases: dict[int, Alias]
    per_rank: npt.NDArray[np.bool_]
    per_rank_values: npt.NDArray[np.bool_]
    values: list[Encoded]
    with_structure: bool
    compared: tuple[ComparedEarlier, ...] = ()
    rank_local: RankLocalItems = field(default_factory=lambda: RankLocalItems([], [], False))
    tensors: Sequence[SavedTensor] = ()
    numbers: FileNumbers | None = None

    def _numbers(self) -> FileNumbers:
        return self.numbers or FileNumbers.as_they_are(len(self.types), len(self.values))

    def structure(self) -> dict[str, Any]:
        """The structure document."""
        leaves, values = self._numbers().described
        return encode_structure(
            self.tree,
            self.types[:leaves],
            self.per_rank[:leaves],
            {index: alias for index, alias in self.aliases.items() if index < leaves},
            self.values[:values],
            self.per_rank_values[:values],
            self.rank_local.rank0,
            self.rank_local.anywhere,
            self.tensors,
        )

    def span_table(self, spans: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """The rows of the part's span table: those of the share, with the leaf numbers of files."""
        if self.numbers is None:
            return spans
        rows = spans.copy()
        rows["leaf"], rows["box"] = self.numbers.arrays[spans["leaf"]], self.numbers.boxes[spans["leaf"]]
        return rows

    @collection_paused()
    def meta(self) -> bytes:
        """The part's JSON document."""
        numbers = self._numbers()
        own = np.flatnonzero(self.per_rank).tolist()
        values = np.flatnonzero(self.per_rank_values).tolist()
        document: dict[str, Any] = {
            "leaves": {str(numbers.arrays[index]): self._leaf(index, numbers) for index in own},
            "values": {str(numbers.values[index]): self.values[index] for index in values},
            "trees": self.rank_local.trees if self.rank_local.anywhere else [],
        }
        if self.with_structure:
            document["structure"] = self.structure()
        return json.dumps(document, separators=(",", ":")).encode()

    def _leaf(self, index: int, numbers: FileNumbers) -> list[Any]:
        kind = self.types[index]
        entry: list[Any] = [kind.kind, kind.dtype, list(kind.shape)]
        if index >= numbers.described[0] and index in self.aliases:
            alias = self.aliases[index]
            entry.append([int(numbers.arrays[alias.owner]), alias.offset, list(alias.strides)])
        return entry


@dataclass(frozen=True, slots=True)
class RankLocalTree:
    """A rank-local subtree.

    Attributes:
        path: its path.
        position: the number of keys before it in the insertion order of its dict; None in other containers.
        node: its root; its leaves are numbered after the shared leaves.
        part: true if it is a part of one state, of which the ranks that have it have equal replicas
            (:mod:`deeppart.state.document.global_state`).
    """

    path: Path
    position: int | None
    node: Node
    part: bool = False


@dataclass(frozen=True, slots=True)
class RankDocument:
    """The decoded document of one part.

    Attributes:
        types: leaf number -> type.
        values: value number -> decoded value.
        structure: the structure, in rank 0's part.
        trees: the rank-local trees of this rank.
        aliases: leaves of ``trees`` that share memory.
    """

    types: dict[int, LeafType]
    values: dict[int, Any]
    structure: Structure | None = field(default=None)
    trees: tuple[RankLocalTree, ...] = ()
    aliases: dict[int, Alias] = field(default_factory=dict)

    def check(self, structure: Structure, where: str) -> Structure:
        """Refuse a document whose leaves or values are not the per-rank ones of the structure."""
        shared, shared_values = len(structure.types), len(structure.values)
        leaves = set(np.flatnonzero(structure.per_rank).tolist())
        values = set(np.flatnonzero(structure.per_rank_values).tolist())
        own = self.types  # their shapes may differ from those on rank 0
        tied = {index: alias for index, alias in structure.aliases.items() if index in own or alias.owner in own}
        try:
            check_aliases(self.all_types(structure) if tied else (), tied)
        except (ValueError, IndexError) as error:
            raise CorruptFileError(
                "a part's document does not fit the structure document", found=str(error), where=where
            ) from error
        found = {index for index in self.types if index < shared or not structure.has_rank_local}
        found_values = {index for index in self.values if index < shared_values or not structure.has_rank_local}
        strange = self.trees and not structure.has_rank_local
        if found != leaves or found_values != values or strange:
            raise CorruptFileError(
                "a part's document does not fit the structure document",
                expected=f"per-rank leaves {sorted(leaves)[:8]}, values {sorted(values)[:8]}",
                found=f"leaves {sorted(self.types)[:8]}, values {sorted(self.values)[:8]}",
                where=where,
            )
        return self.complete(structure, where)

    def complete(self, structure: Structure, where: str) -> Structure:
        """The structure of this rank's state: the shared structure with the rank-local items."""
        return of_rank(structure, self.trees, self.types, self.values, self.aliases, where)

    def all_types(self, structure: Structure) -> list[LeafType]:
        """Type of every leaf as this rank saved it."""
        return [self.types.get(index, kind) for index, kind in enumerate(structure.types)]


@collection_paused()
def decode_meta(meta: bytes, where: str, *, with_structure: bool = True) -> RankDocument:
    """Read a part's JSON document."""
    try:
        document = parse_json(meta)
        types, aliases = {}, {}
        for text, (kind, dtype, shape, *alias) in document["leaves"].items():
            number = _number(text)
            types[number] = checked_type(kind, dtype, shape, where)
            if len(alias) > 1:
                raise ValueError(f"leaf {number} has too many fields")
            if alias:
                aliases[number] = decode_alias(alias[0])
        values = {_number(index): decode_value(value, where) for index, value in document["values"].items()}
        trees = decode_rank_local(document["trees"], set(values), where)
        structure = document.get("structure") if with_structure else None
        check_aliases(types, aliases)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise CorruptFileError(
            "a part's document cannot be read", found=f"{type(error).__name__}: {error}", where=where
        ) from error
    decoded = None if structure is None else decode_structure(structure, where)
    return RankDocument(types, values, decoded, trees, aliases)


def _number(text: str) -> int:
    """The number of a leaf or value, in its only valid spelling."""
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"not a number of a leaf: {short(text)}")
    return int(text)


# --- rank-local items -------------------------------------------------------------------------------------------------


def encode_rank_local(flat: FlatState, numbers: Numbers) -> list[Any]:
    """The JSON form of this rank's rank-local items."""
    return [
        [encode_path(each.path), each.position, encode_tree(each.node, numbers), *([1] if each.part else [])]
        for each in flat.rank_local
        if each.mine and each.node is not None
    ]


def decode_rank_local(documents: Sequence[Any], values: set[int], where: str) -> tuple[RankLocalTree, ...]:
    """Inverse of :func:`encode_rank_local`."""
    trees = []
    most = max(values, default=-1) + 1
    arrays: list[int] = []
    named: list[int] = []
    if type(documents) is not list:
        raise TypeError("no list of trees")
    for path, position, document, *part in documents:
        node, seen = decode_tree(document, most, where)
        if position is not None and (type(position) is not int or not 0 <= position < 1 << 62):
            raise ValueError(f"position {position!r:.80}")
        if part and (part != [1] or type(part[0]) is not int):
            raise ValueError(f"{part!r:.80} does not mark a part of one state")
        trees.append(RankLocalTree(decode_path(path, where), position, node, bool(part)))
        arrays += seen.arrays
        named += seen.values
    if len(set(arrays)) != len(arrays) or len(set(named)) != len(named) or not values.issuperset(named):
        raise ValueError("a tree names a leaf twice, or one that is not described")
    return tuple(trees)


def of_rank(
    structure: Structure,
    trees: Sequence[RankLocalTree],
    types: dict[int, LeafType],
    values: Iterable[int],
    aliases: dict[int, Alias],
    where: str,
) -> Structure:
    """The structure of one rank's state."""
    if not structure.has_rank_local:
        return structure
    shared, shared_values = len(structure.types), len(structure.values)
    added = sorted(index for index in types if index >= shared)
    added_values = sorted(index for index in values if index >= shared_values)
    named = {index for tree in trees for index in LeafNumbers.of(tree.node).arrays}
    try:
        if added != list(range(shared, shared + len(added))):
            raise ValueError("rank-local leaves are not numbered consecutively")
        if added_values != list(range(shared_values, shared_values + len(added_values))):
            raise ValueError("rank-local values are not numbered consecutively")
        if not named.issuperset(added) or not structure.placeless.issuperset(named.difference(added)):
            raise ValueError("a rank-local leaf is in no tree, or a tree names one that is not described")
        tree = structure.tree
        if trees or not structure.is_unmarked:
            tree = insert(tree, trees, whole=True)
            check_nesting(tree)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise CorruptFileError(
            "a part's document does not fit the structure document", found=str(error), where=where
        ) from error
    return replace(
        structure,
        tree=tree,
        types=structure.types + tuple(types[index] for index in added),
        per_rank=np.append(structure.per_rank, np.ones(len(added), dtype=np.bool_)),
        aliases=structure.aliases | aliases,
        values=structure.values + (None,) * len(added_values),
        per_rank_values=np.append(structure.per_rank_values, np.ones(len(added_values), dtype=np.bool_)),
        shared=shared,
    )


def without_rank_local(structure: Structure, trees: Sequence[RankLocalTree]) -> Structure:
    """A structure with placeholders at the rank-local items of all ranks, so that nothing is restored there."""
    if not structure.has_rank_local:
        return structure
    marks = [replace(tree, node=RankLocal(tree.path)) for tree in trees]
    return replace(structure, tree=insert(structure.tree, marks, whole=False))


def insert(root: Node, trees: Sequence[RankLocalTree], *, whole: bool) -> Node:
    """A shared tree with rank-local trees inserted at their paths."""
    return _insert(root, [(tree.path, tree) for tree in trees], whole)


def _insert(node: Node, trees: list[tuple[Path, RankLocalTree]], whole: bool) -> Node:
    if isinstance(node, RankLocal):
        if [rest for rest, _ in trees] == [()]:
            return trees[0][1].node
        if trees or whole:
            raise ValueError(f"{len(trees)} rank-local trees at one path")
        return node
    if not isinstance(node, Branch):
        if trees:
            raise ValueError(f"no position for {readable(trees[0][1].path)}")
        return node
    if node.kind == "object":
        inner = _insert(node.children[0], trees, whole)
        return node if inner is node.children[0] else replace(node, children=(inner,))
    below: dict[Any, list[tuple[Path, RankLocalTree]]] = {}
    for rest, tree in trees:
        if not rest:
            raise ValueError(f"no mark at {readable(tree.path)}")
        below.setdefault(id_key(rest[0]), []).append((rest[1:], tree))
    entries = [
        (key, _insert(child, below.pop(id_key(key), []), whole))
        for key, child in zip(node.keys, node.children, strict=True)
    ]
    added = [each for group in below.values() for each in group]
    if not added and all(child is before for (_, child), before in zip(entries, node.children, strict=True)):
        return node  # the same object for all ranks
    if (node.kind not in DICTS and added) or any(rest or tree.position is None for rest, tree in added):
        raise ValueError(f"no position for {readable(added[0][1].path)}")
    for _, tree in sorted(added, key=lambda each: each[1].position or 0):
        entries.insert(tree.position or 0, (tree.path[-1], tree.node))
    if len({id_key(key) for key, _ in entries}) != len(entries):
        raise ValueError("a dict key is repeated")
    return node.with_items(entries)
