"""Parts of one state: what some ranks have under keys of a dict that others lack, as pipeline stages do.

Sharded tensors and small values there are no rank's own. To whom a checkpoint is restored, the state is the union: a
tree has them all, whichever ranks had them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deeppart.state.document.apart import OwnTree
from deeppart.state.document.structure import DICTS, SavedBranch, SavedNode, SavedSharded, SavedValue, walk_tree
from deeppart.state.tree.paths import ExactPath, IdKey, Path, exact, id_key, id_keys, readable
from deeppart.state.tree.runs import same_leaf_value


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


def is_part(tree: OwnTree) -> bool:
    """True if a tree that stands apart is a part of one state, and not its rank's own.

    Sharded tensors alone always are. A tree with an array is not, since nobody knows which of several is meant.
    """
    if tree.place is None or not _has_no_arrays(tree.node):
        return False
    leaves = [leaf for _, leaf in walk_tree(tree.node, ())]
    return tree.part or (bool(leaves) and not any(map(is_value, leaves)))


def values_in(trees: Iterable[OwnTree]) -> Iterator[tuple[Path, int]]:
    """Path and number of the values in those that are parts of one state."""
    for tree in trees:
        if is_part(tree):
            yield from ((path, leaf.index) for path, leaf in walk_tree(tree.node, tree.path) if is_value(leaf))


def is_value(leaf: SavedNode) -> bool:
    """True for a small value."""
    return isinstance(leaf, SavedValue)


def gather_values(own: Sequence[tuple[Sequence[OwnTree], Mapping[int, Any]]]) -> dict[ExactPath, PartValue]:
    """The values in parts of the state.

    Args:
        own: of each rank, what stands apart on it, and its own values by number.
    """
    found: dict[ExactPath, dict[int, Any]] = {}
    names: dict[ExactPath, str] = {}
    for rank, (trees, values) in enumerate(own):
        for path, number in values_in(trees):
            key = exact(path)
            if key not in found:
                found[key], names[key] = {}, readable(path)
            found[key][rank] = values[number]
    return {key: PartValue(names[key], contents, _differ(contents)) for key, contents in found.items()}


def _differ(contents: Mapping[int, Any]) -> bool:
    first, *others = contents.values()
    return not all(same_leaf_value(first, other) for other in others)


def with_parts(root: SavedNode, parts: Sequence[OwnTree]) -> SavedNode:
    """A tree with all parts of the state, in an order that is the same for every rank; one walk for all of them."""
    paths = {exact(tree.path) for tree in parts}
    # What this rank has of them, too, so that dicts have the same order on all ranks.
    return _with_others(_without(root, (), paths) if paths else root, [(tree.path, tree) for tree in parts])


def joined(trees: Sequence[OwnTree]) -> list[OwnTree]:
    """The trees of several ranks, one for each path: what some of them have and others lack is in it."""
    found: dict[ExactPath, OwnTree] = {}
    for each in trees:
        first = found.setdefault(exact(each.path), each)
        if first is not each:
            found[exact(each.path)] = replace(first, node=_joined(first.node, each.node))
    return list(found.values())


def _without(node: SavedNode, path: tuple[Any, ...], paths: set[ExactPath]) -> SavedNode:
    """A tree without what stands at some paths, if that has no arrays."""
    if not isinstance(node, SavedBranch):
        return node
    kept = []
    for key, child in zip(node.keys, node.children, strict=True):
        inner = path if node.kind == "object" else (*path, key)
        if node.kind == "object" or exact(inner) not in paths or not _has_no_arrays(child):
            kept.append((key, _without(child, inner, paths)))
    return replace(node, keys=tuple(key for key, _ in kept), children=tuple(child for _, child in kept))


def _joined(one: SavedNode, other: SavedNode) -> SavedNode:
    """One tree with what another has under keys of dicts that it lacks."""
    if not isinstance(one, SavedBranch) or not isinstance(other, SavedBranch):
        return other if is_value(one) and not is_value(other) else one  # None, where others have something
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
    """``trees``: with the rest of their paths."""
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


def _has_no_arrays(node: SavedNode) -> bool:
    return all(isinstance(leaf, (SavedSharded, SavedValue)) for _, leaf in walk_tree(node, ()))
