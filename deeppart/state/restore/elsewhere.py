"""Leaves of a step that the live state of this rank has no place for, because other ranks have it: pipeline stages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import torch

from deeppart.state.document.structure import (
    DICTS,
    SavedApart,
    SavedArray,
    SavedBranch,
    SavedNode,
    SavedSharded,
    walk_tree,
)
from deeppart.state.tree.flat import Branch, Node, ShardedLeaf, ValueLeaf
from deeppart.state.tree.paths import Key, Path, id_keys


@dataclass(frozen=True, slots=True)
class Lacking:
    """What a live state has no place for.

    Attributes:
        arrays, values: numbers of leaves with bytes, and of small values.
    """

    arrays: set[int] = field(default_factory=set)
    values: set[int] = field(default_factory=set)

    def any(self) -> bool:
        """True if there is anything."""
        return bool(self.arrays or self.values)

    def covers(self, other: Lacking) -> bool:
        """True if it has all that another one has."""
        return self.arrays.issuperset(other.arrays) and self.values.issuperset(other.values)

    def add(self, other: Lacking) -> None:
        """Take in another one."""
        self.arrays.update(other.arrays)
        self.values.update(other.values)


def lacking_leaves(saved: SavedNode, live: Node) -> Lacking:
    """The leaves whose key, or that of a container around them, a live dict lacks."""
    found = Lacking()
    _pruned(saved, live, found, None)
    return found


def without_leaves(saved: SavedNode, live: Node, elsewhere: Lacking) -> tuple[SavedNode, Lacking]:
    """A saved tree less the items of which the live state lacks the key, and other ranks have all that is in them.

    Args:
        elsewhere: what other ranks have a place for.

    Returns:
        The tree, and what is not in it any more.
    """
    gone = Lacking()
    return _pruned(saved, live, gone, elsewhere), gone


def without_unplaced(
    saved: SavedNode, live: Node, sharded: Collection[int]
) -> tuple[SavedNode, frozenset[int], tuple[Path, ...]]:
    """A saved tree less the items of dicts that the live state lacks, or has None for, and that have sharded tensors.

    How these would be split, nothing says. The state of an optimizer stays: it is split as its parameters are. So does
    everything where the live state has no sharded tensor at all: whole tensors can be made. And what a module lacks, or
    a dict of other sharded tensors, is an error, as it is without shards.

    Args:
        sharded: numbers of the leaves that are sharded tensors.

    Returns:
        The tree, the numbers of the leaves that are not in it any more, and the paths of the items.
    """
    if not sharded or not _has_shards(live):
        return saved, frozenset(), ()
    walk = _Unplaced(frozenset(sharded))
    tree = walk.node(saved, live, ())
    return tree, frozenset(walk.gone), tuple(walk.paths)


class _Unplaced:
    def __init__(self, sharded: frozenset[int]) -> None:
        self._sharded = sharded
        self.gone: set[int] = set()
        self.paths: list[Path] = []

    def node(self, saved: SavedNode, live: Node, path: Path) -> SavedNode:
        if isinstance(live, Branch) and live.kind == "object":
            if isinstance(live.container, (torch.optim.Optimizer, torch.nn.Module)):
                return saved
            live = live.children[0]
        if not isinstance(saved, SavedBranch):
            return saved
        if saved.kind == "object":
            return replace(saved, children=(self.node(saved.children[0], live, path),))
        if not isinstance(live, Branch):
            return saved
        mine = dict(zip(id_keys(live.keys), live.children, strict=True))
        # A dict of sharded tensors that lacks one is another model.
        may_lack = saved.kind in DICTS and not any(isinstance(child, ShardedLeaf) for child in live.children)
        kept: list[tuple[Key, SavedNode]] = []
        for key, name, child in zip(saved.keys, id_keys(saved.keys), saved.children, strict=True):
            inner = mine.get(name)
            lacks = inner is None or (isinstance(inner, ValueLeaf) and inner.value is None)
            arrays = _arrays(child) if lacks and may_lack else set()
            if not arrays.isdisjoint(self._sharded):
                self.gone |= arrays
                self.paths.append((*path, key))
                if inner is not None:
                    kept.append((key, SavedApart()))
                continue
            kept.append((key, child if inner is None else self.node(child, inner, (*path, key))))
        return replace(saved, keys=tuple(key for key, _ in kept), children=tuple(child for _, child in kept))


def _arrays(node: SavedNode) -> set[int]:
    return {leaf.index for _, leaf in walk_tree(node, ()) if isinstance(leaf, SavedArray)}


def _has_shards(live: Node) -> bool:
    if isinstance(live, Branch):
        return any(map(_has_shards, live.children))
    return isinstance(live, ShardedLeaf)


def _leaves(node: SavedNode) -> Lacking:
    found = Lacking()
    for _, leaf in walk_tree(node, ()):
        if not isinstance(leaf, SavedSharded):
            (found.arrays if isinstance(leaf, SavedArray) else found.values).add(leaf.index)
    return found


def _pruned(saved: SavedNode, live: Node, gone: Lacking, elsewhere: Lacking | None) -> SavedNode:
    """``elsewhere``: None for every leaf."""
    if not isinstance(saved, SavedBranch):
        return saved
    if isinstance(live, Branch) and live.kind == "object":
        live = live.children[0]
    if saved.kind == "object":
        return replace(saved, children=(_pruned(saved.children[0], live, gone, elsewhere),))
    if not isinstance(live, Branch):
        return saved
    mine = dict(zip(id_keys(live.keys), live.children, strict=True))
    kept = []
    for key, name, child in zip(saved.keys, id_keys(saved.keys), saved.children, strict=True):
        if name in mine:
            kept.append((key, _pruned(child, mine[name], gone, elsewhere)))
            continue
        leaves = _leaves(child)
        if saved.kind in DICTS and leaves.any() and (elsewhere is None or elsewhere.covers(leaves)):
            gone.add(leaves)
        else:
            kept.append((key, child))
    return replace(saved, keys=tuple(key for key, _ in kept), children=tuple(child for _, child in kept))
