"""Saved items that a live dict lacks: created, left to other ranks that have them, or left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from deeppart.state.objects import is_optimizer
from deeppart.state.paths import ExactPath, Path, exact, id_keys
from deeppart.state.tree import DICTS, Branch, LeafNumbers, Node, ShardedLeaf, ValueLeaf


@dataclass(frozen=True, slots=True)
class Absent:
    """An item of a saved dict whose key the live dict lacks, or for which it has None.

    Attributes:
        path: its path.
        leaves: its leaves.
        around: the live dict.
        is_none: the live dict has None under the key.
        in_module: the dict is a module's.
    """

    path: Path
    leaves: LeafNumbers
    around: Branch
    is_none: bool
    in_module: bool

    def is_left_out(self, sharded: frozenset[int]) -> bool:
        """True if it has sharded tensors that cannot be split.

        The state of an optimizer is not among absent items: it is split like its parameters. An item that a module
        lacks, or a dict of other sharded tensors, is an error, as without shards.
        """
        is_of_shards = any(isinstance(child, ShardedLeaf) for child in self.around.children)
        return not (self.in_module or is_of_shards or self.leaves.arrays.isdisjoint(sharded))


def absent_items(saved: Node, live: Node, path: Path = (), *, in_module: bool = False) -> Iterator[Absent]:
    """All absent items, except in optimizers, which create them."""
    if not isinstance(saved, Branch):
        return
    if isinstance(live, Branch) and live.kind == "object":
        if is_optimizer(live.container):
            return
        in_module = in_module or isinstance(live.container, torch.nn.Module)
        live = live.children[0]
    if saved.kind == "object":
        yield from absent_items(saved.children[0], live, path, in_module=in_module)
        return
    if not isinstance(live, Branch):
        return
    mine = live.by_key()
    for key, name, child in zip(saved.keys, id_keys(saved.keys), saved.children, strict=True):
        inner, here = mine.get(name), (*path, key)
        is_none = isinstance(inner, ValueLeaf) and inner.value is None
        if (inner is None or is_none) and saved.kind in DICTS:
            yield Absent(here, LeafNumbers.of(child), live, is_none, in_module)
        elif isinstance(child, Branch) and inner is not None:
            yield from absent_items(child, inner, here, in_module=in_module)


@dataclass(frozen=True, slots=True)
class PartRules:
    """Where a live dict may lack items because other ranks have them, rather than because they are to be created.

    As when states are saved, this holds for parts of one state, for dicts with sharded tensors, and where the user has
    declared it. Rank 0's items are restored on all ranks, and rank-local items only on their rank.

    Attributes:
        parts: leaves saved as parts of one state.
        part_paths: the paths of these parts.
        own: per-rank leaves.
        rank0: paths of rank 0's items.
        around_own: paths of rank-local items, and of the containers around them.
        declared: true for a path at which ``replicated`` says "parts".
    """

    parts: LeafNumbers = field(default_factory=LeafNumbers)
    part_paths: frozenset[ExactPath] = frozenset()
    own: LeafNumbers = field(default_factory=LeafNumbers)
    rank0: frozenset[ExactPath] = frozenset()
    around_own: frozenset[ExactPath] = frozenset()
    declared: Callable[[Path], bool] = lambda path: False

    def gives_to_others(self, item: Absent, others: LeafNumbers | None = None) -> bool:
        """True if an absent item is restored on other ranks.

        Args:
            item: the item whose key the live dict lacks.
            others: the leaves that other ranks restore; None for every leaf.
        """
        place, leaves = exact(item.path), item.leaves
        if item.is_none:
            return False
        if not leaves.any():
            return place in self.part_paths
        if others is not None and not others.covers(leaves):
            return False
        if any(place[:end] in self.rank0 for end in range(1, len(place) + 1)):
            return False
        if place in self.around_own or self.own.meets(leaves):
            return False
        return self.parts.covers(leaves) or has_shards(item.around) or self.declared(item.path)


def has_shards(live: Node) -> bool:
    """True if a tree has a sharded tensor."""
    if isinstance(live, Branch):
        return any(map(has_shards, live.children))
    return isinstance(live, ShardedLeaf)
