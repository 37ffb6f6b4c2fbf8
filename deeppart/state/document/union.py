"""Parts of one state: what some ranks have under keys of a dict that others lack, as pipeline stages do.

Sharded tensors and small values there are no rank's own. To whom a checkpoint is restored, the state is the union: a
tree has them all, whichever ranks had them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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


#: What stands apart on each rank, and its own values by number.
OwnItems = Sequence[tuple[Sequence[OwnTree], Mapping[int, Any]]]


def may_be_part(tree: OwnTree) -> bool:
    """True if a tree that stands apart may be a part of one state, and not its rank's own.

    Sharded tensors alone always may. A tree with an array may not, since nobody knows which of several is meant.
    """
    if tree.place is None or not _has_no_arrays(tree.node):
        return False
    leaves = [leaf for _, leaf in walk_tree(tree.node, ())]
    return tree.part or (bool(leaves) and not any(isinstance(leaf, SavedValue) for leaf in leaves))


def find_parts(own: OwnItems) -> list[tuple[int, OwnTree]]:
    """The trees that are parts of one state, with their ranks, in the order of these.

    Those of all ranks at one path are, or none: dicts may have other keys, but where anything else differs, which one
    is meant nobody knows, and each rank keeps its own.
    """
    trees: dict[ExactPath, list[tuple[int, OwnTree]]] = {}
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


def values_in(tree: OwnTree) -> Iterator[tuple[Path, int]]:
    """Path and number of the values in a tree."""
    return ((path, leaf.index) for path, leaf in walk_tree(tree.node, tree.path) if isinstance(leaf, SavedValue))


def gather_values(parts: Sequence[tuple[int, OwnTree]], own: OwnItems) -> dict[ExactPath, PartValue]:
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
    return not all(same_leaf_value(first, other) for other in others)


def with_parts(root: SavedNode, parts: Sequence[tuple[int, OwnTree]]) -> SavedNode:
    """A tree with all parts of the state, in an order that is the same for every rank; one walk for all of them."""
    paths = {exact(tree.path) for _, tree in parts}
    # What this rank has of them, too, so that dicts have the same order on all ranks.
    return _with_others(_without(root, (), paths) if paths else root, [(tree.path, rank, tree) for rank, tree in parts])


def joined(trees: Sequence[OwnTree]) -> list[OwnTree]:
    """The trees of several ranks, one for each path, with what some of them have and others lack."""
    found: dict[ExactPath, OwnTree] = {}
    for each in trees:
        first = found.setdefault(exact(each.path), each)
        if first is not each:
            found[exact(each.path)] = replace(first, node=_joined(first.node, each.node))
    return list(found.values())


def _without(node: SavedNode, path: tuple[Any, ...], paths: set[ExactPath]) -> SavedNode:
    """A tree without what stands at some paths."""
    if not isinstance(node, SavedBranch):
        return node
    kept = []
    for key, child in zip(node.keys, node.children, strict=True):
        inner = path if node.kind == "object" else (*path, key)
        if node.kind == "object" or exact(inner) not in paths:
            kept.append((key, _without(child, inner, paths)))
    return node.with_items(kept)


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


#: The rest of a part's path, its rank, and the part.
_Rest = tuple[Path, int, OwnTree]


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


def _merged(shared: Sequence[IdKey], added: Sequence[tuple[int, OwnTree]]) -> list[IdKey]:
    """The keys of a dict and those that ranks have besides, in an order in which those of each rank are in its own."""
    found = list(shared)
    of_ranks: dict[int, list[OwnTree]] = {}
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
