"""The state of a step as all ranks together had it: whole tensors from shards, and parts that only some ranks had.

To whom a checkpoint is restored, a tensor is an array like others, wherever its shards came from. So the structure of
a step is taken for what it would be with whole tensors in place of sharded ones; these are numbered behind all other
leaves, and for each is known which leaf of which part has which box of it. *Parts of one state* are what some ranks
have under keys of a dict that others lack, as pipeline stages do. Sharded tensors and small values there are no rank's
own: the restored state is the union, whichever ranks had them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from deeppart.errors import CorruptFileError
from deeppart.model import Box
from deeppart.state.document.part_document import RankLocalTree
from deeppart.state.document.structure import (
    DICTS,
    SavedArray,
    SavedBranch,
    SavedNode,
    SavedShard,
    SavedSharded,
    SavedValue,
    Structure,
    walk_tree,
    with_items_at,
)
from deeppart.state.paths import ExactPath, IdKey, Path, exact, id_key, id_keys, readable
from deeppart.state.tensors import LeafType
from deeppart.state.tree import Alias, contiguous_strides
from deeppart.state.values import same_value

#: What is rank-local on each rank, and its own values by number.
RankItems = Sequence[tuple[Sequence[RankLocalTree], Mapping[int, Any]]]
#: The rest of a part's path, its rank, and the part.
_Rest = tuple[Path, int, RankLocalTree]


class ShardSource(NamedTuple):
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
class GlobalTensor:
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

    def for_rank(self, part: int) -> GlobalTensor:
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
class GlobalState:
    """All sharded tensors of a step, and all parts of its state.

    Attributes:
        tensors: by path; the order is that of their numbers.
        values: small values in parts of the state, likewise.
        parts: what is rank-local on any rank, and is a part of the state, with its rank.
        part_paths: their paths.
    """

    tensors: Mapping[ExactPath, GlobalTensor]
    values: Mapping[ExactPath, PartValue] = field(default_factory=dict)
    parts: tuple[tuple[int, RankLocalTree], ...] = ()
    part_paths: frozenset[ExactPath] = frozenset()

    def has_part(self, tree: RankLocalTree) -> bool:
        """True if a tree that is rank-local on a rank is a part of the state, and not the rank's own."""
        return exact(tree.path) in self.part_paths

    def contents(self, rank: int | None) -> list[Any]:
        """The values in parts of the state as one rank had them, if it did; None: as the lowest had them."""
        return [value.of(-1 if rank is None else rank) for value in self.values.values()]

    def check(self, where: str) -> None:
        """See that the shards of each tensor are all of it, and do not overlap."""
        for tensor in self.tensors.values():
            if fault := Box.fault_of_cover([box for box in tensor.boxes() if box.elements], tensor.kind.shape):
                raise CorruptFileError(
                    "the parts do not hold every element of a sharded tensor exactly once",
                    expected=f"all of {tensor.name}, {tensor.kind}",
                    found=fault,
                    where=where,
                    todo="the checkpoint was not written by a sound library: restore an earlier step",
                )


def gather_global_state(of_ranks: Sequence[Structure], own: RankItems, where: str) -> GlobalState:
    """Bring the shards of all parts together."""
    gathering = _Gathering(where)
    for part, structure in enumerate(of_ranks):
        gathering.take(part, structure)
    parts = find_parts(own)
    paths = frozenset(exact(tree.path) for _, tree in parts)
    return GlobalState(gathering.tensors(), gather_values(parts, own), tuple(parts), paths)


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
        #: The tree that was looked at last, and where it has sharded tensors: most ranks have the same.
        self._tree: SavedNode | None = None
        self._sharded: list[tuple[ExactPath, Path, int]] = []

    def take(self, part: int, structure: Structure) -> None:
        """Take in what one rank had."""
        if not structure.sharded:
            return
        if structure.tree is not self._tree:
            places_in = ((path, node) for path, node in structure.walk() if isinstance(node, SavedSharded))
            self._sharded = [(exact(path), path, node.index) for path, node in places_in]
            self._tree = structure.tree
        places: dict[int, tuple[ExactPath, Box]] = {}
        found: list[tuple[ExactPath, SavedShard]] = []
        for key, path, number in self._sharded:
            kind = structure.sharded[number]
            self._known_to[key] += 1
            if key not in self._kinds:
                self._kinds[key] = kind, readable(path)
            known, name = self._kinds[key]
            if known is not kind and known != kind:
                raise CorruptFileError(
                    "parts hold shards of different tensors at one path",
                    expected=str(known),
                    found=str(kind),
                    where=f"{self._where}, part {part}, path {name}",
                )
            shards = structure.shards.get(number, ())
            found += [(key, shard) for shard in shards]
            if structure.aliases:
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

    def tensors(self) -> dict[ExactPath, GlobalTensor]:
        """All tensors."""
        return {key: self._whole(key, kind, name) for key, (kind, name) in self._kinds.items()}

    def _whole(self, key: ExactPath, kind: LeafType, name: str) -> GlobalTensor:
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
        return GlobalTensor(kind, name, tuple(sources), tied_to, self._known_to[key], tuple(own))


def _is_all_of(alias: Alias, box: Box, owner: Box) -> bool:
    """True if a shard is the same elements in the same order as the one whose memory it shares."""
    return box == owner and not alias.offset and alias.strides == contiguous_strides(box.sizes)


def with_global_state(base: Structure, global_state: GlobalState) -> Structure:
    """A structure with whole tensors in place of sharded ones, and with all parts of the state."""
    if not global_state.tensors and not global_state.parts:
        return base
    first, values = len(base.types), len(global_state.values)
    numbers = {key: first + place for place, key in enumerate(global_state.tensors)}
    of_values = {key: len(base.values) + place for place, key in enumerate(global_state.values)}
    parts = [
        (rank, replace(each, node=_renumbered(each.node, each.path, of_values))) for rank, each in global_state.parts
    ]
    tree = _replaced(with_parts(base.tree, parts), (), numbers)
    tensors = list(global_state.tensors.values())
    aliases = dict(base.aliases)
    for number, tensor in enumerate(tensors, start=first):
        owner = None if tensor.tied_to is None else global_state.tensors.get(tensor.tied_to)
        if owner is not None and owner.kind == tensor.kind and tensor.tied_to is not None and owner.tied_to is None:
            aliases[number] = Alias(numbers[tensor.tied_to], 0, contiguous_strides(tensor.kind.shape))
    return replace(
        base,
        tree=tree,
        types=base.types + tuple(tensor.kind for tensor in tensors),
        per_rank=np.append(base.per_rank, np.zeros(len(tensors), dtype=np.bool_)),
        aliases=aliases,
        values=base.values + (None,) * values,
        per_rank_values=np.append(base.per_rank_values, np.zeros(values, dtype=np.bool_)),
        sharded=(),
        shards={},
    )


def _renumbered(node: SavedNode, path: tuple[Any, ...], numbers: Mapping[ExactPath, int]) -> SavedNode:
    """A part of the state with other numbers for its values."""
    if isinstance(node, SavedValue):
        return SavedValue(numbers[exact(path)])
    if not isinstance(node, SavedBranch):
        return node
    return replace(node, children=tuple(_renumbered(child, inner, numbers) for inner, child in _below(node, path)))


def _below(node: SavedBranch, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], SavedNode]]:
    for key, child in zip(node.keys, node.children, strict=True):
        yield path if node.kind == "object" else (*path, key), child


def _replaced(node: SavedNode, path: tuple[Any, ...], numbers: Mapping[ExactPath, int]) -> SavedNode:
    if isinstance(node, SavedSharded):
        return SavedArray(numbers[exact(path)])
    if not isinstance(node, SavedBranch):
        return node
    return replace(node, children=tuple(_replaced(child, inner, numbers) for inner, child in _below(node, path)))


# --- parts of one state -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartValue:
    """A small value in a part of the state, as all ranks that had it together say.

    Attributes:
        name: its path, for people.
        contents: rank -> what it had, ascending.
        differs: true if these are not all the same.
    """

    name: str
    contents: Mapping[int, Any]
    differs: bool

    def of(self, rank: int) -> Any:
        """What one rank had; if it had none, the lowest that did."""
        return self.contents[rank] if rank in self.contents else next(iter(self.contents.values()))


def may_be_part(tree: RankLocalTree) -> bool:
    """True if a tree that is rank-local may be a part of one state, and not its rank's own.

    Sharded tensors alone always may. A tree with an array may not, since nobody knows which of several is meant.
    """
    if tree.place is None or not _has_no_arrays(tree.node):
        return False
    leaves = [leaf for _, leaf in walk_tree(tree.node, ())]
    return tree.part or (bool(leaves) and not any(isinstance(leaf, SavedValue) for leaf in leaves))


def find_parts(own: RankItems) -> list[tuple[int, RankLocalTree]]:
    """The trees that are parts of one state, with their ranks, in the order of these.

    Those of all ranks at one path are, or none: dicts may have other keys, but where anything else differs, which one
    is meant nobody knows, and each rank keeps its own.
    """
    trees: dict[ExactPath, list[tuple[int, RankLocalTree]]] = {}
    joint: dict[ExactPath, SavedNode] = {}  # all that ranks have there so far
    refused: set[ExactPath] = set()
    of_equal: dict[Path, ExactPath] = {}  # keys that are equal for a dict, such as 1 and True, find no place in one
    for rank, (items, _) in enumerate(own):
        for tree in items:
            key = exact(tree.path)
            trees.setdefault(key, []).append((rank, tree))
            known = joint.setdefault(key, tree.node)
            if not may_be_part(tree) or not _is_joinable(known, tree.node):
                refused.add(key)
            elif known is not tree.node:
                joint[key] = _joined(known, tree.node)
            if (equal := of_equal.setdefault(tree.path, key)) != key:
                refused |= {key, equal}
    kept = [each for key, found in trees.items() if key not in refused for each in found]
    return sorted(kept, key=lambda each: each[0])


def _is_joinable(one: SavedNode, other: SavedNode) -> bool:
    """True if one tree can have all that two have."""
    if not isinstance(one, SavedBranch) or not isinstance(other, SavedBranch):
        return type(one) is type(other)
    if (one.kind, one.name) != (other.kind, other.name):
        return False
    mine = dict(zip(id_keys(one.keys), one.children, strict=True))
    theirs = dict(zip(id_keys(other.keys), other.children, strict=True))
    if one.kind in DICTS:
        if len(set(one.keys) | set(other.keys)) != len(mine.keys() | theirs.keys()):
            return False
        common = mine.keys() & theirs.keys()
        if one.kind == "odict" and [key for key in mine if key in common] != [key for key in theirs if key in common]:
            return False
    elif mine.keys() != theirs.keys():
        return False
    return all(_is_joinable(child, theirs[key]) for key, child in mine.items() if key in theirs)


def values_in(tree: RankLocalTree) -> Iterator[tuple[Path, int]]:
    """Path and number of the values in a tree."""
    return ((path, leaf.index) for path, leaf in walk_tree(tree.node, tree.path) if isinstance(leaf, SavedValue))


def gather_values(parts: Sequence[tuple[int, RankLocalTree]], own: RankItems) -> dict[ExactPath, PartValue]:
    """The values in parts of the state, as :func:`find_parts` found them."""
    found: dict[ExactPath, dict[int, Any]] = {}
    names: dict[ExactPath, str] = {}
    for rank, tree in parts:
        for path, number in values_in(tree):
            key = exact(path)
            if key not in found:
                found[key], names[key] = {}, readable(path)
            found[key][rank] = own[rank][1][number]
    return {key: PartValue(names[key], contents, _differ(contents)) for key, contents in found.items()}


def _differ(contents: Mapping[int, Any]) -> bool:
    first, *others = contents.values()
    return not all(same_value(first, other) for other in others)


def with_parts(root: SavedNode, parts: Sequence[tuple[int, RankLocalTree]]) -> SavedNode:
    """A tree with all parts of the state, in an order that is the same for every rank; one walk for all of them."""
    shared = with_items_at(root, {exact(tree.path): None for _, tree in parts})
    # What this rank has of them, too, so that dicts have the same order on all ranks.
    return _with_others(shared, [(tree.path, rank, tree) for rank, tree in parts])


def joined(trees: Sequence[RankLocalTree]) -> list[RankLocalTree]:
    """The trees of several ranks, one for each path, with what some of them have and others lack."""
    found: dict[ExactPath, RankLocalTree] = {}
    for each in trees:
        first = found.setdefault(exact(each.path), each)
        if first is not each:
            found[exact(each.path)] = replace(first, node=_joined(first.node, each.node))
    return list(found.values())


def _joined(one: SavedNode, other: SavedNode) -> SavedNode:
    """One tree with what another has under keys of dicts that it lacks."""
    if not isinstance(one, SavedBranch) or not isinstance(other, SavedBranch):
        return one
    if one.kind not in DICTS:
        return replace(one, children=tuple(map(_joined, one.children, other.children)))
    names, others = list(id_keys(one.keys)), list(id_keys(other.keys))
    entries = dict(zip(names, zip(one.keys, one.children, strict=True), strict=True))
    for name, key, child in zip(others, other.keys, other.children, strict=True):
        entries[name] = (entries[name][0], _joined(entries[name][1], child)) if name in entries else (key, child)
    _merge(names, others)
    return one.with_items(entries[name] for name in names)


def _with_others(node: SavedNode, trees: Sequence[_Rest]) -> SavedNode:
    below: dict[IdKey, list[_Rest]] = {}
    if not isinstance(node, SavedBranch):
        return node
    if node.kind == "object":
        return replace(node, children=(_with_others(node.children[0], trees),))
    for rest, rank, tree in trees:
        if rest:
            below.setdefault(id_key(rest[0]), []).append((rest[1:], rank, tree))
    if not below:
        return node
    names = id_keys(node.keys)
    entries = {
        name: (key, _with_others(child, below.pop(name, ())))
        for key, name, child in zip(node.keys, names, node.children, strict=True)
    }
    added = [(rank, tree) for group in below.values() for rest, rank, tree in group if not rest]
    if node.kind in DICTS:
        entries |= {id_key(tree.path[-1]): (tree.path[-1], tree.node) for tree in joined([tree for _, tree in added])}
        names = _merged(names, added)
    return node.with_items(entries[name] for name in names)


def _merged(shared: Sequence[IdKey], added: Sequence[tuple[int, RankLocalTree]]) -> list[IdKey]:
    """The keys of a dict and those that ranks have besides, in an order in which those of each rank are in its own."""
    found = list(shared)
    of_ranks: dict[int, list[RankLocalTree]] = {}
    for rank, tree in added:
        of_ranks.setdefault(rank, []).append(tree)
    for rank in sorted(of_ranks):
        mine = list(shared)
        for tree in sorted(of_ranks[rank], key=lambda each: each.place or 0):
            mine.insert(tree.place or 0, id_key(tree.path[-1]))
        _merge(found, mine)
    return found


def _merge(found: list[IdKey], others: Sequence[IdKey]) -> None:
    """Take in what others have: each right behind the one that it is behind there."""
    there = set(found)
    behind: dict[IdKey | None, list[IdKey]] = {}
    last: IdKey | None = None
    for name in others:
        if name in there:
            last = name
        else:
            behind.setdefault(last, []).append(name)
    if behind:
        rest = [each for name in found for each in (name, *behind.get(name, ()))]
        found[:] = [*behind.get(None, ()), *rest]


def _has_no_arrays(node: SavedNode) -> bool:
    return all(isinstance(leaf, (SavedSharded, SavedValue)) for _, leaf in walk_tree(node, ()))
