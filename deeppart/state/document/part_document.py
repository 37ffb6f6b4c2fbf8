"""The JSON documents of a checkpoint: what its bytes mean.

Every part carries a small document with its rank's own values and leaf types; rank 0's also carries the structure
document (:mod:`deeppart.state.document.structure`). Encoding is left to the background: nothing here may change once
made. Of sharded tensors there is nothing in it: the structure document says how they are divided, and the span table
which box a span is of.

Subtrees that are rank-local from the structure that all ranks share are in the document of each rank that has them. The
shared structure has a mark in their place in a list, and nothing in a dict, whose other keys the ranks share. A rank's
state is both together (:func:`of_rank`).
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
from deeppart.errors import CorruptFileError
from deeppart.model import ComparedEarlier
from deeppart.part import parse_json, short
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
from deeppart.state.paths import Key, Path, id_key, readable
from deeppart.state.tensors import LeafType
from deeppart.state.tree import DICTS, Alias, Branch, FlatState, LeafNumbers, Node, RankLocal
from deeppart.state.values import Encoded, decode_value

_DICT_CODES = frozenset(CODES[kind] for kind in DICTS)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class FileNumbers:
    """The numbers that the leaves of one rank have in files, by those that they have on this rank.

    In files the leaves of the structure document come first: what all ranks share, what is rank 0's, and the global
    tensors. What is rank-local follows.

    Attributes:
        described: how many arrays and values of this rank are in the structure document, without the global tensors.
        arrays, values: of arrays and values; of a shard, that of its tensor.
        boxes: number of the box that a shard is; 0 of every other array.
    """

    described: tuple[int, int]
    arrays: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.int64]

    @classmethod
    def as_they_are(cls, arrays: int, values: int) -> FileNumbers:
        """Of a state of which all is in the structure document, and nothing is sharded."""
        return cls((arrays, values), np.arange(arrays), np.arange(values), np.zeros(arrays, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Own:
    """The items that are rank-local on one rank (:mod:`deeppart.state.document.part_document`).

    Attributes:
        trees: JSON form of the trees.
        rank0: paths of what is rank 0's.
        anywhere: true if anything is rank-local on any rank.
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
        per_rank, per_rank_values: which leaves and values are this rank's own; no shard is.
        values: encoded values, of this checkpoint.
        with_structure: true if this is rank 0, which carries the structure.
        compared: for the manifest, the replicated leaves that were last compared in full before this step.
        own: the items that are rank-local on this rank.
        tensors: the global tensors, in the order of their numbers.
        numbers: those that leaves have in files; None if they are the same as here.
    """

    tree: Any
    types: list[LeafType]
    aliases: dict[int, Alias]
    per_rank: npt.NDArray[np.bool_]
    per_rank_values: npt.NDArray[np.bool_]
    values: list[Encoded]
    with_structure: bool
    compared: tuple[ComparedEarlier, ...] = ()
    own: Own = field(default_factory=lambda: Own([], [], False))
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
            self.own.rank0,
            self.own.anywhere,
            self.tensors,
        )

    def span_table(self, spans: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """The rows of the part's span table: those of a share, with the numbers that leaves have in files."""
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
            "trees": self.own.trees if self.own.anywhere else [],
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
    """The subtree of one rank at a path that is rank-local.

    Attributes:
        path: its path.
        place: of a dict's key, how many keys come before it in insertion order; None in other containers.
        node: the node there; its leaves are numbered from the number of shared leaves on.
        part: true if it is a part of one state, which the ranks that have it hold alike
            (:mod:`deeppart.state.document.global_state`).
    """

    path: Path
    place: int | None
    node: Node
    part: bool = False


@dataclass(frozen=True, slots=True)
class RankDocument:
    """The description of a rank's own leaves and values in its part, decoded.

    Attributes:
        types: leaf number -> type.
        values: value number -> decoded value.
        structure: the structure, in rank 0's part.
        trees: the trees that are rank-local on this rank.
        aliases: leaves of ``trees`` that share memory.
    """

    types: dict[int, LeafType]
    values: dict[int, Any]
    structure: Structure | None = field(default=None)
    trees: tuple[RankLocalTree, ...] = ()
    aliases: dict[int, Alias] = field(default_factory=dict)

    def check(self, structure: Structure, where: str) -> Structure:
        """Refuse a document that names other leaves or values than the structure calls per rank."""
        shared, shared_values = len(structure.types), len(structure.values)
        leaves = set(np.flatnonzero(structure.per_rank).tolist())
        values = set(np.flatnonzero(structure.per_rank_values).tolist())
        own = self.types  # which may have other shapes than on rank 0
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
        """The structure of this rank's state: what all ranks share, and what is rank-local on this one."""
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
                raise ValueError(f"leaf {number} has more to it than a leaf has")
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


def saved_outermost(meta: bytes) -> list[Key]:
    """The keys of the outermost dict in the structure of rank 0's document; [] if that is no dict.

    Nothing else of it is decoded or checked.
    """
    code, *rest = parse_json(meta)["structure"]["tree"]
    return list(decode_path(rest[0], "outermost keys")) if code in _DICT_CODES else []


def _number(text: str) -> int:
    """The number of a leaf or value, written in the one way that there is."""
    if _NUMBER.fullmatch(text) is None:
        raise ValueError(f"not a number of a leaf: {short(text)}")
    return int(text)


# --- what is rank-local -----------------------------------------------------------------------------------------------


def encode_rank_local(flat: FlatState, numbers: Numbers) -> list[Any]:
    """The JSON form of what is rank-local on this rank."""
    return [
        [encode_path(each.path), each.place, encode_tree(each.node, numbers), *([1] if each.part else [])]
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
    for path, place, document, *part in documents:
        node, seen = decode_tree(document, most, where)
        if place is not None and (type(place) is not int or not 0 <= place < 1 << 62):
            raise ValueError(f"place {place!r:.80}")
        if part and (part != [1] or type(part[0]) is not int):
            raise ValueError(f"{part!r:.80} is no mark of a part of one state")
        trees.append(RankLocalTree(decode_path(path, where), place, node, bool(part)))
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
            raise ValueError("leaves that are rank-local are not numbered in a row")
        if added_values != list(range(shared_values, shared_values + len(added_values))):
            raise ValueError("values that are rank-local are not numbered in a row")
        if not named.issuperset(added) or not structure.placeless.issuperset(named.difference(added)):
            raise ValueError("a leaf that is rank-local is in no tree, or a tree names one that is not described")
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
    """A structure in which nothing is restored where any rank had something that was rank-local."""
    if not structure.has_rank_local:
        return structure
    marks = [replace(tree, node=RankLocal()) for tree in trees]
    return replace(structure, tree=insert(structure.tree, marks, whole=False))


def insert(root: Node, trees: Sequence[RankLocalTree], *, whole: bool) -> Node:
    """A shared tree with what is rank-local in its places."""
    return _insert(root, [(tree.path, tree) for tree in trees], whole)


def _insert(node: Node, trees: list[tuple[Path, RankLocalTree]], whole: bool) -> Node:
    if isinstance(node, RankLocal):
        if [rest for rest, _ in trees] == [()]:
            return trees[0][1].node
        if trees or whole:
            raise ValueError(f"{len(trees)} trees are rank-local where there is a place for one")
        return node
    if not isinstance(node, Branch):
        if trees:
            raise ValueError(f"no place for {readable(trees[0][1].path)}")
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
        return node  # the very node that other ranks have, too
    if (node.kind not in DICTS and added) or any(rest or tree.place is None for rest, tree in added):
        raise ValueError(f"no place for {readable(added[0][1].path)}")
    for _, tree in sorted(added, key=lambda each: each[1].place or 0):
        entries.insert(tree.place or 0, (tree.path[-1], tree.node))
    if len({id_key(key) for key, _ in entries}) != len(entries):
        raise ValueError("a dict key is repeated")
    return node.with_items(entries)
