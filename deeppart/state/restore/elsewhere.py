"""Leaves of a step that the live state of this rank has no place for, because other ranks have it: pipeline stages."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import torch

from deeppart.state.document.structure import (
    DICTS,
    SavedApart,
    SavedArray,
    SavedBranch,
    SavedNode,
    SavedSharded,
    array_numbers,
    walk_tree,
)
from deeppart.state.tree.flat import Branch, Node, ShardedLeaf, ValueLeaf
from deeppart.state.tree.objects import is_optimizer
from deeppart.state.tree.paths import ExactPath, Key, Path, exact, id_keys


@dataclass(frozen=True, slots=True)
class LeafNumbers:
    """Some leaves of a step.

    Attributes:
        arrays, values: numbers of those with bytes, and of small values.
    """

    arrays: set[int] = field(default_factory=set)
    values: set[int] = field(default_factory=set)

    def any(self) -> bool:
        """True if there is anything."""
        return bool(self.arrays or self.values)

    def covers(self, other: LeafNumbers) -> bool:
        """True if it has all that another one has."""
        return self.arrays.issuperset(other.arrays) and self.values.issuperset(other.values)

    def meets(self, other: LeafNumbers) -> bool:
        """True if it has anything that another one has."""
        return not (self.arrays.isdisjoint(other.arrays) and self.values.isdisjoint(other.values))

    def add(self, other: LeafNumbers) -> None:
        """Take in another one."""
        self.arrays.update(other.arrays)
        self.values.update(other.values)


@dataclass(frozen=True, slots=True)
class PartRules:
    """Where a live dict may lack items because other ranks have them, and not because they are still to be made.

    So it is with what was saved as a part of one state, with dicts that have sharded tensors in them, and where the
    user says so; the same as when states are saved. Optimizers make what they lack, what is rank 0's all ranks get, and
    what is each rank's own is nobody else's.

    Attributes:
        parts: what was saved as a part of one state.
        part_paths: the paths of these items.
        own: what is each rank's own.
        rank0: paths of what is rank 0's.
        around_own: paths of what stands apart on some rank, and of the containers around it.
        declared: true for a path at which ``replicated`` says "parts".
    """

    parts: LeafNumbers = field(default_factory=LeafNumbers)
    part_paths: frozenset[ExactPath] = frozenset()
    own: LeafNumbers = field(default_factory=LeafNumbers)
    rank0: frozenset[ExactPath] = frozenset()
    around_own: frozenset[ExactPath] = frozenset()
    declared: Callable[[Path], bool] = lambda path: False


def lacking_leaves(saved: SavedNode, live: Node, rules: PartRules) -> LeafNumbers:
    """The leaves whose key, or that of a container around them, a live dict lacks, and may lack."""
    found = LeafNumbers()
    _Pruning(rules, found, None).node(saved, live, ())
    return found


def without_leaves(
    saved: SavedNode, live: Node, rules: PartRules, elsewhere: LeafNumbers
) -> tuple[SavedNode, LeafNumbers]:
    """A saved tree less the items of which the live state lacks the key, and other ranks have all that is in them."""
    gone = LeafNumbers()
    return _Pruning(rules, gone, elsewhere).node(saved, live, ()), gone


def without_unplaced(
    saved: SavedNode, live: Node, sharded: Collection[int]
) -> tuple[SavedNode, frozenset[int], tuple[Path, ...]]:
    """A saved tree less the items of dicts that the live state lacks, or has None for, and that have sharded tensors.

    How these would be split, nothing says. The state of an optimizer stays: it is split as its parameters are. So does
    everything where the live state has no sharded tensor at all: whole tensors can be made. And what a module lacks, or
    a dict of other sharded tensors, is an error, as it is without shards.
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
            if isinstance(live.container, torch.nn.Module) or is_optimizer(live.container):
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
            arrays = array_numbers(child) if lacks and may_lack else set()
            if not arrays.isdisjoint(self._sharded):
                self.gone |= arrays
                self.paths.append((*path, key))
                if inner is not None:
                    kept.append((key, SavedApart()))
                continue
            kept.append((key, child if inner is None else self.node(child, inner, (*path, key))))
        return saved.with_items(kept)


def _has_shards(live: Node) -> bool:
    if isinstance(live, Branch):
        return any(map(_has_shards, live.children))
    return isinstance(live, ShardedLeaf)


def _leaves(node: SavedNode) -> LeafNumbers:
    found = LeafNumbers()
    for _, leaf in walk_tree(node, ()):
        if not isinstance(leaf, SavedSharded):
            (found.arrays if isinstance(leaf, SavedArray) else found.values).add(leaf.index)
    return found


class _Pruning:
    """One walk of :func:`without_leaves`; ``elsewhere``: None for every leaf."""

    def __init__(self, rules: PartRules, gone: LeafNumbers, elsewhere: LeafNumbers | None) -> None:
        self._rules, self._gone, self._elsewhere = rules, gone, elsewhere

    def node(self, saved: SavedNode, live: Node, path: Path) -> SavedNode:
        if not isinstance(saved, SavedBranch):
            return saved
        if isinstance(live, Branch) and live.kind == "object":
            if is_optimizer(live.container):
                return saved
            live = live.children[0]
        if saved.kind == "object":
            return replace(saved, children=(self.node(saved.children[0], live, path),))
        if not isinstance(live, Branch):
            return saved
        mine = dict(zip(id_keys(live.keys), live.children, strict=True))
        kept = []
        for key, name, child in zip(saved.keys, id_keys(saved.keys), saved.children, strict=True):
            if name not in mine:
                if saved.kind not in DICTS or not self._is_others(child, live, (*path, key)):
                    kept.append((key, child))
                continue
            found = child
            if isinstance(child, SavedBranch):
                inner = (*path, key)
                is_rank0 = bool(self._rules.rank0) and exact(inner) in self._rules.rank0
                found = child if is_rank0 else self.node(child, mine[name], inner)
            kept.append((key, found))
        if len(kept) == len(saved.children) and all(map(operator.is_, saved.children, (child for _, child in kept))):
            return saved
        return saved.with_items(kept)

    def _is_others(self, lacking: SavedNode, live: Branch, path: Path) -> bool:
        """True if an item that a live dict lacks has its place on other ranks; it is noted then."""
        leaves, rules, place = _leaves(lacking), self._rules, exact(path)
        if not leaves.any():
            return place in rules.part_paths
        if not (self._elsewhere is None or self._elsewhere.covers(leaves)):
            return False
        if place in rules.rank0 or place in rules.around_own or rules.own.meets(leaves):
            return False
        if not (rules.parts.covers(leaves) or _has_shards(live) or rules.declared(path)):
            return False
        self._gone.add(leaves)
        return True
