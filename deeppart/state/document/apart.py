"""Subtrees apart from the structure that all ranks share: each rank has saved them for itself.

The shared structure has a mark in their place in a list, and nothing in a dict, whose other keys the ranks share. Each
part's document says what its rank has there. A rank's state is both together (:func:`of_rank`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from deeppart.errors import CorruptFileError
from deeppart.model.boxes import Box
from deeppart.state.document.decoding import check_nesting, decode_path, decode_tree
from deeppart.state.document.encoding import encode_path, encode_tree
from deeppart.state.document.structure import (
    DICTS,
    Alias,
    SavedApart,
    SavedArray,
    SavedBranch,
    SavedNode,
    SavedShard,
    Structure,
    walk_tree,
)
from deeppart.state.tree.flat import FlatState
from deeppart.state.tree.leaves import LeafType
from deeppart.state.tree.paths import Path, id_key, readable


@dataclass(frozen=True, slots=True)
class OwnTree:
    """The subtree of one rank at a path that is apart.

    Attributes:
        path: its path.
        place: of a dict's key, how many keys come before it in insertion order; None in other containers.
        node: the node there; its leaves are numbered from the number of shared leaves on.
        part: true if it is a part of one state, which the ranks that have it hold alike
            (:mod:`deeppart.state.document.union`).
    """

    path: Path
    place: int | None
    node: SavedNode
    part: bool = False


@dataclass(frozen=True, slots=True)
class OwnSharded:
    """What a part's document says of sharded tensors.

    Attributes:
        whole: number -> whole type, of those that stand in the part's own trees.
        shards: number -> the rank's leaves that are shards of it, where each begins, and whether other ranks had other
            bytes for the same one.
    """

    whole: dict[int, LeafType] = field(default_factory=dict)
    shards: dict[int, tuple[tuple[int, tuple[int, ...], bool], ...]] = field(default_factory=dict)

    def in_row(self, first: int) -> list[LeafType]:
        """The whole types, which are numbered from ``first`` on."""
        if sorted(self.whole) != list(range(first, first + len(self.whole))):
            raise ValueError("sharded tensors that stand apart are not numbered in a row")
        return [self.whole[number] for number in sorted(self.whole)]

    def placed(
        self, whole: Sequence[LeafType], types: dict[int, LeafType], first: int, trees: Sequence[OwnTree]
    ) -> dict[int, tuple[SavedShard, ...]]:
        """The shards with their boxes."""
        found: dict[int, tuple[SavedShard, ...]] = {}
        used = [leaf for tree in trees for leaf in leaves_of(tree.node)]
        for number, shards in self.shards.items():
            tensor, placed = whole[number], []
            for leaf, offset, own in shards:
                kind, box = types[leaf], Box(offset, types[leaf].shape)
                if leaf < first or kind.dtype != tensor.dtype or kind.kind != tensor.kind or not box.fits(tensor.shape):
                    raise ValueError(f"leaf {leaf}, {kind} from {offset} on, is no shard of {tensor}")
                placed.append(SavedShard(leaf, box, own))
                used.append(leaf)
            found[number] = tuple(placed)
        if len(set(used)) != len(used) or set(used) != {leaf for leaf in types if leaf >= first}:
            raise ValueError("a leaf that stands apart is no shard and in no tree, or twice")
        return found


def leaves_of(node: SavedNode) -> Iterator[int]:
    """Numbers of the arrays in a tree."""
    return (leaf.index for _, leaf in walk_tree(node, ()) if isinstance(leaf, SavedArray))


def encode_own(flat: FlatState, first: tuple[int, int]) -> list[Any]:
    """The JSON form of what stands apart on this rank."""
    return [
        [encode_path(each.path), each.place, encode_tree(each.node, first), *([1] if each.part else [])]
        for each in flat.apart
        if each.mine and each.node is not None
    ]


def decode_own(
    documents: Sequence[Any], leaves: set[int], values: set[int], sharded: set[int], where: str
) -> tuple[OwnTree, ...]:
    """Inverse of :func:`encode_own`."""
    trees = []
    most = max(values, default=-1) + 1
    named: tuple[list[int], list[int], list[int]] = ([], [], [])
    if type(documents) is not list:
        raise TypeError("no list of trees")
    for path, place, document, *part in documents:
        node, seen = decode_tree(document, most, where)
        if place is not None and (type(place) is not int or not 0 <= place < 1 << 62):
            raise ValueError(f"place {place!r:.80}")
        if part and (part != [1] or type(part[0]) is not int):
            raise ValueError(f"{part!r:.80} is no mark of a part of one state")
        trees.append(OwnTree(decode_path(path, where), place, node, bool(part)))
        named[0].extend(seen.arrays)
        named[1].extend(seen.values)
        named[2].extend(seen.sharded)
    for numbers, known in zip(named, (leaves, values, sharded), strict=True):
        if len(set(numbers)) != len(numbers) or not known.issuperset(numbers):
            raise ValueError("a tree names a leaf twice, or one that is not described")
    return tuple(trees)


def of_rank(
    structure: Structure,
    trees: Sequence[OwnTree],
    types: dict[int, LeafType],
    values: Iterable[int],
    aliases: dict[int, Alias],
    sharded: OwnSharded,
    where: str,
) -> Structure:
    """The structure of one rank's state."""
    if not structure.has_apart:
        return structure
    shared, shared_values = len(structure.types), len(structure.values)
    added = sorted(index for index in types if index >= shared)
    added_values = sorted(index for index in values if index >= shared_values)
    try:
        if added != list(range(shared, shared + len(added))):
            raise ValueError("leaves that stand apart are not numbered in a row")
        if added_values != list(range(shared_values, shared_values + len(added_values))):
            raise ValueError("values that stand apart are not numbered in a row")
        whole = [*structure.sharded, *sharded.in_row(len(structure.sharded))]
        shards = sharded.placed(whole, types, shared, trees)
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
        sharded=tuple(whole),
        shards=shards,
    )


def without_apart(structure: Structure, trees: Sequence[OwnTree]) -> Structure:
    """A structure in which nothing is restored where any rank had something that stood apart."""
    if not structure.has_apart:
        return structure
    marks = [replace(tree, node=SavedApart()) for tree in trees]
    return replace(structure, tree=insert(structure.tree, marks, whole=False))


def insert(root: SavedNode, trees: Sequence[OwnTree], *, whole: bool) -> SavedNode:
    """A shared tree with what stands apart in its places."""
    return _insert(root, [(tree.path, tree) for tree in trees], whole)


def _insert(node: SavedNode, trees: list[tuple[Path, OwnTree]], whole: bool) -> SavedNode:
    if isinstance(node, SavedApart):
        if [rest for rest, _ in trees] == [()]:
            return trees[0][1].node
        if trees or whole:
            raise ValueError(f"{len(trees)} trees stand apart where there is a place for one")
        return node
    if not isinstance(node, SavedBranch):
        if trees:
            raise ValueError(f"no place for {readable(trees[0][1].path)}")
        return node
    if node.kind == "object":
        inner = _insert(node.children[0], trees, whole)
        return node if inner is node.children[0] else replace(node, children=(inner,))
    below: dict[Any, list[tuple[Path, OwnTree]]] = {}
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
