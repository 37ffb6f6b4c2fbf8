"""Sharded tensors as whole leaves: what any rank had of them, brought together from the documents of all parts.

To whom a checkpoint is restored, a tensor is an array like others, wherever its shards came from. So the structure of
a step is taken for what it would be with whole tensors in place of sharded ones; these are numbered behind all other
leaves, and for each is known which leaf of which part has which box of it. What only some ranks had, as pipeline
stages have other layers than others, is part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from deeppart.errors import CorruptFileError
from deeppart.model.boxes import Box
from deeppart.plan.shards import fault_of_cover
from deeppart.state.document.apart import OwnTree
from deeppart.state.document.structure import (
    DICTS,
    Alias,
    SavedArray,
    SavedBranch,
    SavedNode,
    SavedShard,
    SavedSharded,
    Structure,
    walk_tree,
)
from deeppart.state.document.ties import contiguous_strides
from deeppart.state.tree.leaves import LeafType
from deeppart.state.tree.paths import ExactPath, IdKey, Path, exact, id_key, id_keys, readable


@dataclass(frozen=True, slots=True)
class ShardSource:
    """A leaf of one part that has elements of a whole tensor.

    Attributes:
        part: number of the part.
        leaf: number of the leaf there.
        box: the elements, all of the leaf in C order.
    """

    part: int
    leaf: int
    box: Box


@dataclass(frozen=True, slots=True)
class WholeTensor:
    """A sharded tensor, as all parts together have it.

    Attributes:
        kind: its type.
        name: its path, for people.
        sources: of different boxes, or of parts of the bytes of one box: of equal shards each part has some. Of a box
            of which ranks had different bytes, those of the lowest rank.
        tied_to: the tensor whose memory all of its shards share, if there is one.
        known_to: how many ranks have it in their state.
        own: the shards of each rank of which other ranks had other bytes.
    """

    kind: LeafType
    name: str
    sources: tuple[ShardSource, ...]
    tied_to: ExactPath | None
    known_to: int
    own: tuple[ShardSource, ...] = ()

    def for_rank(self, part: int) -> WholeTensor:
        """The same tensor, with the bytes that one rank had where ranks had different ones."""
        mine = {source.box: source for source in self.own if source.part == part}
        if not mine:
            return self
        kept = tuple(source for source in self.sources if source.box not in mine)
        return replace(self, sources=kept + tuple(mine.values()))

    def boxes(self) -> list[Box]:
        """The different boxes, in order."""
        return sorted({source.box for source in self.sources})


@dataclass(frozen=True, slots=True)
class Wholes:
    """All sharded tensors of a step.

    Attributes:
        tensors: by path; the order is that of their numbers.
    """

    tensors: Mapping[ExactPath, WholeTensor]

    def check(self, where: str) -> None:
        """See that the shards of each tensor are all of it, and do not overlap.

        Raises:
            CorruptFileError: they are not.
        """
        for tensor in self.tensors.values():
            if fault := fault_of_cover([box for box in tensor.boxes() if box.elements], tensor.kind.shape):
                raise CorruptFileError(
                    "the parts do not hold every element of a sharded tensor exactly once",
                    expected=f"all of {tensor.name}, {tensor.kind}",
                    found=fault,
                    where=where,
                    todo="the checkpoint was not written by a sound library: restore an earlier step",
                )


def gather_wholes(of_ranks: Sequence[Structure], where: str) -> Wholes:
    """Bring the shards of all parts together.

    Args:
        of_ranks: the structure of each part's rank.

    Raises:
        CorruptFileError: parts call tensors of different types by one path.
    """
    gathering = _Gathering(where)
    for part, structure in enumerate(of_ranks):
        gathering.take(part, structure)
    return gathering.wholes()


class _Gathering:
    """Shards being brought together, part after part."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._kinds: dict[ExactPath, tuple[LeafType, str]] = {}
        self._known_to: Counter[ExactPath] = Counter()
        #: Of each box of each tensor, who has bytes of it; and of those tied to another, the tensor and box of that.
        self._saved: dict[ExactPath, dict[Box, list[ShardSource]]] = {}
        self._own: dict[ExactPath, list[ShardSource]] = {}
        self._tied_in: dict[ExactPath, set[int]] = {}
        self._tied: dict[ExactPath, dict[Box, tuple[ExactPath, Box]]] = {}

    def take(self, part: int, structure: Structure) -> None:
        """Take in what one rank had."""
        places: dict[int, tuple[ExactPath, Box]] = {}
        found: list[tuple[ExactPath, SavedShard]] = []
        for path, node in structure.walk():
            if isinstance(node, SavedSharded):
                key, kind = exact(path), structure.sharded[node.index]
                self._known_to[key] += 1
                known, name = self._kinds.setdefault(key, (kind, readable(path)))
                if known != kind:
                    raise CorruptFileError(
                        "parts hold shards of different tensors at one path",
                        expected=str(known),
                        found=str(kind),
                        where=f"{self._where}, part {part}, path {name}",
                    )
                shards = structure.shards.get(node.index, ())
                found += [(key, shard) for shard in shards]
                places |= {shard.leaf: (key, shard.box) for shard in shards}
        for key, shard in found:
            alias = structure.aliases.get(shard.leaf)
            if alias is None:
                source = ShardSource(part, shard.leaf, shard.box)
                if shard.own:
                    self._own.setdefault(key, []).append(source)
                    if shard.box in self._saved.get(key, {}):
                        continue
                self._saved.setdefault(key, {}).setdefault(shard.box, []).append(source)
            elif alias.owner in places and _is_all_of(alias, shard.box, places[alias.owner][1]):
                self._tied.setdefault(key, {})[shard.box] = places[alias.owner]
                self._tied_in.setdefault(key, set()).add(part)
            else:
                raise CorruptFileError(
                    "a shard shares its memory with what is no shard of its size", where=f"{self._where}, part {part}"
                )

    def wholes(self) -> Wholes:
        """All tensors."""
        return Wholes({key: self._whole(key, kind, name) for key, (kind, name) in self._kinds.items()})

    def _whole(self, key: ExactPath, kind: LeafType, name: str) -> WholeTensor:
        saved, tied = self._saved.get(key, {}), self._tied.get(key, {})
        sources = [source for found in saved.values() for source in found]
        for box, (owner, owners_box) in tied.items():
            if box not in saved:
                # Each of those who hold the owner's box may have saved some of its bytes.
                theirs = self._saved.get(owner, {}).get(owners_box, [])
                sources += [ShardSource(each.part, each.leaf, box) for each in theirs]
        owners = {owner for owner, _ in tied.values()}
        tied_to = next(iter(owners)) if not saved and len(owners) == 1 else None
        own = list(self._own.get(key, ()))
        for box, (owner, owners_box) in tied.items():
            # Where ranks had other bytes for the owner, so they had for what shares its memory.
            theirs = [each for each in self._own.get(owner, ()) if each.box == owners_box]
            own += [ShardSource(each.part, each.leaf, box) for each in theirs if each.part in self._tied_in[key]]
        return WholeTensor(kind, name, tuple(sources), tied_to, self._known_to[key], tuple(own))


def _is_all_of(alias: Alias, box: Box, owner: Box) -> bool:
    """True if a shard is the same elements in the same order as the one whose memory it shares."""
    return box == owner and not alias.offset and alias.strides == contiguous_strides(box.sizes)


def with_wholes(base: Structure, others: Sequence[OwnTree], wholes: Wholes) -> Structure:
    """A structure with whole tensors in place of sharded ones.

    Args:
        base: what one rank had, or what all ranks share.
        others: trees of other ranks; those of which ``base`` has nothing, and which hold sharded tensors only, are
            part of it.
        wholes: all sharded tensors; numbered behind the leaves of ``base``.
    """
    if not wholes.tensors:
        return base
    first = len(base.types)
    numbers = {key: first + place for place, key in enumerate(wholes.tensors)}
    # What this rank has of them, too, so that dicts have the same order on all ranks.
    missing = [(each.path, each) for each in others if each.place is not None and only_sharded(each.node)]
    moved = {exact(path) for path, _ in missing}
    tree = _without(base.tree, (), moved) if moved else base.tree
    tree = _replaced(_with_others(tree, missing), (), numbers)
    tensors = list(wholes.tensors.values())
    aliases = dict(base.aliases)
    for number, tensor in enumerate(tensors, start=first):
        owner = None if tensor.tied_to is None else wholes.tensors.get(tensor.tied_to)
        if owner is not None and owner.kind == tensor.kind and tensor.tied_to is not None and owner.tied_to is None:
            aliases[number] = Alias(numbers[tensor.tied_to], 0, contiguous_strides(tensor.kind.shape))
    return replace(
        base,
        tree=tree,
        types=base.types + tuple(tensor.kind for tensor in tensors),
        per_rank=np.append(base.per_rank, np.zeros(len(tensors), dtype=np.bool_)),
        aliases=aliases,
        sharded=(),
        shards={},
    )


def only_sharded(node: SavedNode) -> bool:
    """True if a tree has no leaves but sharded tensors."""
    leaves = [leaf for _, leaf in walk_tree(node, ())]
    return bool(leaves) and all(isinstance(leaf, SavedSharded) for leaf in leaves)


def joined(trees: Sequence[OwnTree]) -> list[OwnTree]:
    """The trees of several ranks, one for each path: what some of them have and others lack is in it."""
    found: dict[ExactPath, OwnTree] = {}
    for each in trees:
        first = found.setdefault(exact(each.path), each)
        if first is not each:
            found[exact(each.path)] = replace(first, node=_joined(first.node, each.node))
    return list(found.values())


def _without(node: SavedNode, path: tuple[Any, ...], paths: set[ExactPath]) -> SavedNode:
    """A tree without the sharded tensors at some paths, or the containers of them."""
    if not isinstance(node, SavedBranch):
        return node
    kept = []
    for key, child in zip(node.keys, node.children, strict=True):
        inner = path if node.kind == "object" else (*path, key)
        if node.kind == "object" or exact(inner) not in paths or not only_sharded(child):
            kept.append((key, _without(child, inner, paths)))
    return replace(node, keys=tuple(key for key, _ in kept), children=tuple(child for _, child in kept))


def _joined(one: SavedNode, other: SavedNode) -> SavedNode:
    """One tree with what another has under keys of dicts that it lacks."""
    if not isinstance(one, SavedBranch) or not isinstance(other, SavedBranch):
        return one
    if one.kind not in DICTS or other.kind not in DICTS:
        if one.kind != other.kind or len(one.children) != len(other.children):
            return one
        return replace(one, children=tuple(map(_joined, one.children, other.children)))
    theirs = dict(zip(id_keys(other.keys), zip(other.keys, other.children, strict=True), strict=True))
    children = [
        _joined(child, theirs.pop(name)[1]) if name in theirs else child
        for name, child in zip(id_keys(one.keys), one.children, strict=True)
    ]
    keys = (*one.keys, *(key for key, _ in theirs.values()))
    return replace(one, keys=keys, children=(*children, *(child for _, child in theirs.values())))


def _with_others(node: SavedNode, trees: Sequence[tuple[Path, OwnTree]]) -> SavedNode:
    """A tree with what other ranks have of sharded tensors, and it lacks; one walk for all of them.

    Args:
        trees: with the rest of their paths.
    """
    for rest, tree in trees:
        node = node if rest else _joined(node, tree.node)
    below: dict[IdKey, list[tuple[Path, OwnTree]]] = {}
    if not isinstance(node, SavedBranch):
        return node
    if node.kind == "object":
        return replace(node, children=(_with_others(node.children[0], trees),))
    for rest, tree in trees:
        if rest:
            below.setdefault(id_key(rest[0]), []).append((rest[1:], tree))
    if not below:
        return node
    entries = [
        (key, _with_others(child, below.pop(name, ())))
        for key, name, child in zip(node.keys, id_keys(node.keys), node.children, strict=True)
    ]
    added = joined([tree for group in below.values() for rest, tree in group if not rest])
    for tree in sorted(added if node.kind in DICTS else (), key=lambda each: each.place or 0):
        entries.insert(tree.place or 0, (tree.path[-1], tree.node))
    return replace(node, keys=tuple(key for key, _ in entries), children=tuple(child for _, child in entries))


def _replaced(node: SavedNode, path: tuple[Any, ...], numbers: Mapping[ExactPath, int]) -> SavedNode:
    if isinstance(node, SavedSharded):
        return SavedArray(numbers[exact(path)])
    if not isinstance(node, SavedBranch):
        return node
    children = tuple(
        _replaced(child, path if node.kind == "object" else (*path, key), numbers)
        for key, child in zip(node.keys, node.children, strict=True)
    )
    return replace(node, children=children)
