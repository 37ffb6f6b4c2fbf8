"""The JSON document in each part: the types of its rank's leaves, and its rank's values.

Rank 0's also has the structure document (:mod:`deeppart.state.document.structure`). Documents are encoded in the
background, so nothing in these records may change. Sharded tensors are not in the document of a part: the structure
document has their divisions, and the span table says which box a span belongs to.

Rank-local subtrees are in the document of each rank that has them. The shared structure has a placeholder for them in
lists, and nothing in dicts, whose other keys the ranks share. :meth:`RankDocument.check` combines both into the
structure of a rank's state.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
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
    AS_THEY_ARE,
    Numbers,
    SavedTensor,
    check_aliases,
    check_nesting,
    decode_alias,
    decode_path,
    decode_structure,
    decode_tree,
    decode_type,
    encode_leaf,
    encode_path,
    encode_structure,
    encode_tree,
)
from deeppart.state.paths import IdKey, Path, id_key, id_keys, readable
from deeppart.state.tensors import LeafType
from deeppart.state.tree import DICTS, Alias, Branch, FlatState, LeafNumbers, Node, RankLocal, every_node
from deeppart.state.values import Encoded, decode_value

_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


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
        trees: JSON form of the rank-local items of this rank.
        rank0: paths of items that rank 0 saves for all ranks.
        has_rank_local: true if any rank has rank-local items.
        tensors: the global tensors, in the order of their numbers.
        numbers: numbers of the leaves in files.
    """

    tree: Any
    types: list[LeafType]
    aliases: dict[int, Alias]
    per_rank: npt.NDArray[np.bool_]
    per_rank_values: npt.NDArray[np.bool_]
    values: list[Encoded]
    with_structure: bool
    compared: tuple[ComparedEarlier, ...] = ()
    trees: Sequence[Any] = ()
    rank0: Sequence[Any] = ()
    has_rank_local: bool = False
    tensors: Sequence[SavedTensor] = ()
    numbers: Numbers = AS_THEY_ARE

    def structure(self) -> dict[str, Any]:
        """The structure document."""
        leaves, values = self.numbers.described
        return encode_structure(
            self.tree,
            self.types[:leaves],
            self.per_rank[:leaves],
            {index: alias for index, alias in self.aliases.items() if index < leaves},
            self.values[:values],
            self.per_rank_values[:values],
            list(self.rank0),
            self.has_rank_local,
            self.tensors,
        )

    def span_table(self, spans: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """The rows of the part's span table: those of the share, with the leaf numbers of files."""
        if self.numbers.boxes is None:
            return spans
        rows = spans.copy()
        for name, numbers in (("leaf", self.numbers.arrays), ("box", self.numbers.boxes)):
            rows[name] = np.array(numbers, dtype=np.int64)[spans["leaf"]]
        return rows

    @collection_paused()
    def meta(self) -> bytes:
        """The part's JSON document."""
        numbers = self.numbers
        own = np.flatnonzero(self.per_rank).tolist()
        values = np.flatnonzero(self.per_rank_values).tolist()
        document: dict[str, Any] = {
            "leaves": {str(numbers.arrays[index]): self._leaf(index) for index in own},
            "values": {str(numbers.values[index]): self.values[index] for index in values},
            "trees": list(self.trees) if self.has_rank_local else [],
        }
        if self.with_structure:
            document["structure"] = self.structure()
        return json.dumps(document, separators=(",", ":")).encode()

    def _leaf(self, index: int) -> list[Any]:
        alias = self.aliases.get(index) if index >= self.numbers.described[0] else None
        if alias is not None:
            alias = replace(alias, owner=self.numbers.arrays[alias.owner])
        return encode_leaf(self.types[index], alias)


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
        """The structure of this rank's state: the shared structure with the rank-local items.

        Refuses a document whose leaves or values are not the per-rank ones of the structure and those of ``trees``.
        """
        shared, shared_values = len(structure.types), len(structure.values)
        leaves = set(np.flatnonzero(structure.per_rank).tolist())
        values = set(np.flatnonzero(structure.per_rank_values).tolist())
        added, added_values = sorted(self.types.keys() - leaves), sorted(self.values.keys() - values)
        sound = leaves <= self.types.keys() and values <= self.values.keys()
        sound = sound and added == list(range(shared, shared + len(added)))
        sound = sound and added_values == list(range(shared_values, shared_values + len(added_values)))
        if not sound or (not structure.has_rank_local and (added or added_values or self.trees)):
            raise CorruptFileError(
                "a part's document does not fit the structure document",
                expected=f"per-rank leaves {sorted(leaves)[:8]}, values {sorted(values)[:8]}"
                + f"; rank-local ones from {shared} and {shared_values} on" * structure.has_rank_local,
                found=f"leaves {sorted(self.types)[:8]}, values {sorted(self.values)[:8]}",
                where=where,
            )
        try:
            own = self.types  # their shapes may differ from those on rank 0
            tied = {index: alias for index, alias in structure.aliases.items() if index in own or alias.owner in own}
            check_aliases(self.all_types(structure) if tied else (), tied)
            return self._inserted(structure, added, added_values) if structure.has_rank_local else structure
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise CorruptFileError(
                "a part's document does not fit the structure document", found=str(error), where=where
            ) from error

    def _inserted(self, structure: Structure, added: list[int], added_values: list[int]) -> Structure:
        """The structure with the rank-local items, whose leaves and values are added."""
        named = {index for tree in self.trees for index in LeafNumbers.of(tree.node).arrays}
        if not named.issuperset(added) or not structure.placeless.issuperset(named.difference(added)):
            raise ValueError("a rank-local leaf is in no tree, or a tree names one that is not described")
        tree = insert(structure.tree, self.trees)
        if not structure.is_unmarked and _has_placeholders(tree):
            raise ValueError("a placeholder stands for no rank-local item")
        if self.trees:
            check_nesting(tree)
        return replace(
            structure,
            tree=tree,
            types=structure.types + tuple(self.types[index] for index in added),
            per_rank=np.append(structure.per_rank, np.ones(len(added), dtype=np.bool_)),
            aliases=structure.aliases | self.aliases,
            values=structure.values + (None,) * len(added_values),
            per_rank_values=np.append(structure.per_rank_values, np.ones(len(added_values), dtype=np.bool_)),
        )

    def all_types(self, structure: Structure) -> list[LeafType]:
        """Type of every leaf as this rank saved it."""
        return [self.types.get(index, kind) for index, kind in enumerate(structure.types)]


@collection_paused()
def decode_meta(meta: bytes, where: str, *, with_structure: bool = True) -> RankDocument:
    """Read a part's JSON document."""
    try:
        document = parse_json(meta)
        leaves = {_number(text): leaf for text, leaf in document["leaves"].items()}
        types = {number: decode_type(kind, dtype, shape, where) for number, (kind, dtype, shape, *_) in leaves.items()}
        aliases = {number: decode_alias(views) for number, (_, _, _, *views) in leaves.items() if views}
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
    arrays: list[int] = []
    named: list[int] = []
    if type(documents) is not list:
        raise TypeError("no list of trees")
    for path, position, document, *part in documents:
        node, seen = decode_tree(document, where)
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


def without_rank_local(structure: Structure, trees: Sequence[RankLocalTree]) -> Structure:
    """A structure with placeholders at the rank-local items of all ranks, so that nothing is restored there."""
    if not structure.has_rank_local:
        return structure
    marks = [replace(tree, node=RankLocal(tree.path)) for tree in trees]
    return replace(structure, tree=insert(structure.tree, marks))


def insert(root: Node, trees: Sequence[RankLocalTree]) -> Node:
    """A shared tree with rank-local trees at their paths: in place of placeholders, or as further items of dicts.

    Containers without any are the same objects.
    """
    return _insert(root, [(tree.path, tree) for tree in trees])


def _insert(node: Node, trees: Sequence[tuple[Path, RankLocalTree]]) -> Node:
    if not trees:
        return node
    if isinstance(node, RankLocal) and [rest for rest, _ in trees] == [()]:
        return trees[0][1].node
    if isinstance(node, Branch) and node.kind == "object":
        return replace(node, children=(_insert(node.children[0], trees),))
    if not isinstance(node, Branch) or any(not rest for rest, _ in trees):
        raise ValueError(f"no place for {readable(trees[0][1].path)}")
    below: dict[IdKey, list[tuple[Path, RankLocalTree]]] = {}
    for rest, tree in trees:
        below.setdefault(id_key(rest[0]), []).append((rest[1:], tree))
    items = zip(node.keys, id_keys(node.keys), node.children, strict=True)
    entries = [(key, _insert(child, below.pop(name, ()))) for key, name, child in items]
    added = [each for group in below.values() for each in group]
    if (node.kind not in DICTS and added) or any(rest or tree.position is None for rest, tree in added):
        raise ValueError(f"no position for {readable(added[0][1].path)}")
    if len(added) != len(below):
        raise ValueError("a dict key is repeated")
    for _, tree in sorted(added, key=lambda each: each[1].position or 0):
        entries.insert(tree.position or 0, (tree.path[-1], tree.node))
    return node.with_items(entries)


def _has_placeholders(node: Node) -> bool:
    return any(isinstance(each, RankLocal) for _, each in every_node(node, ()))
