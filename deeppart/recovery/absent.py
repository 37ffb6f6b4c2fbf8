"""Saved items that a live dict lacks: created, left to other ranks that have them, or left out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from deeppart.recovery.ranks import Ranks
from deeppart.recovery.saved import SavedStep
from deeppart.state.paths import Path, exact
from deeppart.state.restore import Absent, Choice
from deeppart.state.tree import FlatState, LeafNumbers, ShardedLeaf, walk_tree


def share_out_absent(
    saved: SavedStep,
    flat: FlatState,
    choice: Choice,
    ranks: Ranks,
    what: str,
    declared: Callable[[Path], bool] = lambda path: False,
) -> None:
    """Find out which items this live state lacks because other ranks have them, and which cannot be split (collective).

    Args:
        declared: true for a path at which ``replicated`` says "parts".
    """
    shared = saved.documents.structure
    # The numbers that are the same on all ranks: of shared leaves, and of the last ones.
    arrays = np.arange(len(shared.types))
    in_parts = saved.first_value + np.arange(len(saved.global_state.values))
    values = np.concatenate([np.arange(len(shared.values)), in_parts])
    belongs = _of_other_ranks(saved, declared)
    given = [item for item in choice.absent if belongs(item)]
    # If the live state has no sharded tensor at all, plain tensors can be created.
    unsplit = [item for item in choice.absent if flat.sharded and _cannot_be_split(item, saved)]
    here = LeafNumbers(set(saved.left_out - saved.all_own_leaves()))
    for item in given:
        here.add(item.leaves)
    # With sharded tensors, leaves of a container that is not restored here may be restored on another rank.
    for item in unsplit:
        here.arrays.update(item.leaves.arrays - saved.all_own_leaves())
    lacking = np.concatenate([np.isin(arrays, list(here.arrays)), np.isin(values, list(here.values))])
    placed = (~lacking).astype(np.int64)
    found = lacking & ranks.finish(ranks.comm.maximum(placed), what).astype(np.bool_)
    numbers = arrays[found[: len(arrays)]].tolist(), values[found[len(arrays) :]].tolist()
    others = LeafNumbers(*map(set, numbers))
    choice.left_to_others = [item for item in given if others.covers(item.leaves)]
    choice.left_out = [item for item in unsplit if item not in choice.left_to_others]


def _cannot_be_split(item: Absent, saved: SavedStep) -> bool:
    """True if an item has sharded tensors that cannot be split.

    The state of an optimizer is not among absent items: it is split like its parameters. An item that a module lacks,
    or a dict of other sharded tensors, is an error, as without shards.
    """
    is_of_shards = any(isinstance(child, ShardedLeaf) for child in item.around.children)
    return not (item.in_module or is_of_shards or item.leaves.arrays.isdisjoint(saved.tensors))


def _of_other_ranks(saved: SavedStep, declared: Callable[[Path], bool]) -> Callable[[Absent], bool]:
    """A function that says whether a live dict may lack an item because other ranks have it.

    As when states are saved, this holds for parts of one state, for dicts with sharded tensors, and where the user has
    declared it. Rank 0's items are restored on all ranks, and rank-local items only on their rank.
    """
    global_state, rank0 = saved.global_state, saved.documents.structure.rank0
    paths = {exact(path) for _, tree in global_state.parts for path, _ in walk_tree(tree.node, tree.path)}
    arrays = {number for number, tensor in global_state.tensors.items() if exact(tensor.path) in paths}
    parts = LeafNumbers(arrays, set(saved.part_values()))
    own = LeafNumbers(set(saved.own_leaves), set(saved.own_values))
    around_own = {exact(tree.path)[:end] for tree in saved.rank_local for end in range(1, len(tree.path) + 1)}

    def belongs(item: Absent) -> bool:
        place, leaves = exact(item.path), item.leaves
        if item.is_none:
            return False
        if not leaves.any():
            return place in global_state.part_paths
        if any(place[:end] in rank0 for end in range(1, len(place) + 1)):
            return False
        if place in around_own or own.meets(leaves):
            return False
        has_shards = any(isinstance(leaf, ShardedLeaf) for _, leaf in walk_tree(item.around, ()))
        return parts.covers(leaves) or has_shards or declared(item.path)

    return belongs
