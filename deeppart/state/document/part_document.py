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
from collections.abc import Container, Sequence
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
    decode_leaves,
    decode_path,
    decode_structure,
    decode_tree,
    encode_leaf,
    encode_path,
    encode_small,
    encode_structure,
    encode_tree,
)
from deeppart.state.paths import IdKey, Path, id_key, id_keys, readable
from deeppart.state.tensors import LeafType
from deeppart.state.tree import DICTS, Alias, Branch, FlatState, Node, RankLocal, every_node, numbers_in
from deeppart.state.values import Encoded

_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PartDocument:
    """The document of one rank's part, without its bytes.

    Attributes:
        tree: JSON form of the tree that all ranks share.
        types: type of each leaf on this rank.
        values: encoded values of this checkpoint, which are numbered after the leaves.
        aliases: leaves that share memory.
        per_rank: by number, which leaves and values differ between ranks; no shard does.
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
    values: list[Encoded]
    aliases: dict[int, Alias]
    per_rank: npt.NDArray[np.bool_]
    with_structure: bool
    compared: tuple[ComparedEarlier, ...] = ()
    trees: Sequence[Any] = ()
    rank0: Sequence[Any] = ()
    has_rank_local: bool = False
    tensors: Sequence[SavedTensor] = ()
    numbers: Numbers = AS_THEY_ARE

    def structure(self) -> dict[str, Any]:
        """The structure document."""
        per_rank = self.per_rank.tolist()
        numbered = sorted(zip(self.numbers.leaves, range(len(per_rank)), strict=False))
        shared = [(number, index) for number, index in numbered if number < self.numbers.described]
        return encode_structure(
            self.tree,
            [self._leaf(index, is_shared=True) for _, index in shared],
            [number for number, index in shared if per_rank[index]],
            self.rank0,
            self.has_rank_local,
            self.tensors,
        )

    def span_table(self, spans: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
        """The rows of the part's span table: those of the share, with the leaf numbers of files."""
        if self.numbers.boxes is None:
            return spans
        rows = spans.copy()
        for name, numbers in (("leaf", self.numbers.leaves), ("box", self.numbers.boxes)):
            rows[name] = np.array(numbers, dtype=np.int64)[spans["leaf"]]
        return rows

    @collection_paused()
    def meta(self) -> bytes:
        """The part's JSON document."""
        numbers, own = self.numbers.leaves, np.flatnonzero(self.per_rank).tolist()
        document: dict[str, Any] = {
            "leaves": {str(numbers[index]): self._leaf(index, is_shared=False) for index in own},
            "trees": list(self.trees) if self.has_rank_local else [],
        }
        if self.with_structure:
            document["structure"] = self.structure()
        return json.dumps(document, separators=(",", ":")).encode()

    def _leaf(self, index: int, *, is_shared: bool) -> list[Any]:
        """A leaf or value in the structure document, or in that of this rank."""
        if index >= len(self.types):
            return encode_small(None if is_shared and self.per_rank[index] else self.values[index - len(self.types)])
        alias, numbers = self.aliases.get(index), self.numbers.leaves
        if alias is not None and (is_shared or numbers[index] >= self.numbers.described):
            return encode_leaf(self.types[index], replace(alias, owner=numbers[alias.owner]))
        return encode_leaf(self.types[index], None)


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
        types: number of a leaf -> its type.
        values: number of a value -> it.
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
        shared, numbers = len(structure), self.types.keys() | self.values.keys()
        per_rank = set(np.flatnonzero(structure.per_rank).tolist())
        added = sorted(numbers - per_rank)
        sound = per_rank <= numbers and added == list(range(shared, shared + len(added)))
        sound = sound and not (
            self.types.keys() & structure.values.keys() or self.values.keys() & structure.types.keys()
        )
        if not sound or (not structure.has_rank_local and (added or self.trees)):
            raise CorruptFileError(
                "a part's document does not fit the structure document",
                expected=f"per-rank leaves and values {sorted(per_rank)[:8]}"
                + f"; rank-local ones from {shared} on" * structure.has_rank_local,
                found=f"leaves {sorted(self.types)[:8]}, values {sorted(self.values)[:8]}",
                where=where,
            )
        try:
            own = self.types  # their shapes may differ from those on rank 0
            tied = {index: alias for index, alias in structure.aliases.items() if index in own or alias.owner in own}
            check_aliases({**structure.types, **own} if tied else {}, tied)
            return self._inserted(structure, set(added)) if structure.has_rank_local else structure
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise CorruptFileError(
                "a part's document does not fit the structure document", found=str(error), where=where
            ) from error

    def _inserted(self, structure: Structure, added: set[int]) -> Structure:
        """The structure with the rank-local items, whose leaves and values are added."""
        named = {number for tree in self.trees for number in numbers_in(tree.node)}
        if not added <= named or not named - added <= structure.placeless:
            raise ValueError("a rank-local leaf is in no tree, or a tree names one that is not described")
        tree = insert(structure.tree, self.trees)
        if not structure.is_unmarked and _has_placeholders(tree):
            raise ValueError("a placeholder stands for no rank-local item")
        if self.trees:
            check_nesting(tree)
        types = {number: kind for number, kind in self.types.items() if number in added}
        whole = structure.extended(tree, types, added & self.values.keys(), per_rank=True)
        return replace(whole, aliases=structure.aliases | self.aliases)


@collection_paused()
def decode_meta(meta: bytes, where: str, *, with_structure: bool = True) -> RankDocument:
    """Read a part's JSON document."""
    try:
        document = parse_json(meta)
        leaves = decode_leaves(((_number(text), leaf) for text, leaf in document["leaves"].items()), where)
        trees = decode_rank_local(document["trees"], leaves.values, where)
        structure = document.get("structure") if with_structure else None
        check_aliases(leaves.types, leaves.aliases)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise CorruptFileError(
            "a part's document cannot be read", found=f"{type(error).__name__}: {error}", where=where
        ) from error
    decoded = None if structure is None else decode_structure(structure, where)
    return RankDocument(leaves.types, leaves.values, decoded, trees, leaves.aliases)


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


def decode_rank_local(documents: Sequence[Any], values: Container[int], where: str) -> tuple[RankLocalTree, ...]:
    """Inverse of :func:`encode_rank_local`; ``values``: which numbers are of small values."""
    trees = []
    named: list[int] = []
    if type(documents) is not list:
        raise TypeError("no list of trees")
    for path, position, document, *part in documents:
        node, seen = decode_tree(document, values, where)
        if seen.marks:
            raise ValueError("a placeholder in a rank-local tree")
        if position is not None and (type(position) is not int or not 0 <= position < 1 << 62):
            raise ValueError(f"position {position!r:.80}")
        if part and (part != [1] or type(part[0]) is not int):
            raise ValueError(f"{part!r:.80} does not mark a part of one state")
        trees.append(RankLocalTree(decode_path(path, where), position, node, bool(part)))
        named += seen.numbers
    if len(set(named)) != len(named):
        raise ValueError("a leaf is named twice")
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
    for _, tree in sorted(added, key=lambda each: each[1].position or 0):
        entries.insert(tree.position or 0, (tree.path[-1], tree.node))
    if added and len({key for key, _ in entries}) != len(entries):  # 1, 1.0 and True are the same key
        raise ValueError("a dict key is repeated")
    return node.with_items(entries)


def _has_placeholders(node: Node) -> bool:
    return any(isinstance(each, RankLocal) for _, each in every_node(node, ()))
