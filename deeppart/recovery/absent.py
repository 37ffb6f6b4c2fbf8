"""Saved items that a live dict lacks: created, left to other ranks that have them, or left out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from deeppart.recovery.ranks import Ranks
from deeppart.recovery.saved import SavedStep
from deeppart.state.paths import Path, exact
from deeppart.state.restore import Absent, Choice
from deeppart.state.tree import ArrayLeaf, FlatState, ShardedLeaf, numbers_in, walk_tree


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
    # What all ranks know: the leaves and values of the structure document, and the values in parts of one state.
    structure = saved.structure
    numbers = np.array([*range(len(saved.documents.structure)), *structure.in_parts], dtype=np.int64)
    own = frozenset(np.flatnonzero(structure.per_rank).tolist())  # requested or not
    belongs = _of_other_ranks(saved, declared)
    given = [item for item in choice.absent if belongs(item)]
    # If the live state has no sharded tensor at all, plain tensors can be created.
    unsplit = [item for item in choice.absent if flat.sharded and _cannot_be_split(item, saved)]
    # With sharded tensors, leaves of a container that is not restored here may be restored on another rank.
    left = saved.left_out.union(*(item.numbers for item in unsplit)) - own
    lacking = np.isin(numbers, [*left.union(*(item.numbers for item in given))])
    placed = (~lacking).astype(np.int64)
    found = lacking & ranks.finish(ranks.comm.maximum(placed), what).astype(np.bool_)
    others = set(numbers[found].tolist())
    choice.left_to_others = [item for item in given if item.numbers <= others]
    choice.left_out = [item for item in unsplit if item not in choice.left_to_others]


def _cannot_be_split(item: Absent, saved: SavedStep) -> bool:
    """True if an item has sharded tensors that cannot be split.

    The state of an optimizer is not among absent items: it is split like its parameters. An item that a module lacks,
    or a dict of other sharded tensors, is an error, as without shards.
    """
    is_of_shards = any(isinstance(child, ShardedLeaf) for child in item.around.children)
    return not (item.in_module or is_of_shards or item.numbers.isdisjoint(saved.structure.divisions))


def _of_other_ranks(saved: SavedStep, declared: Callable[[Path], bool]) -> Callable[[Absent], bool]:
    """A function that says whether a live dict may lack an item because other ranks have it.

    As when states are saved, this holds for parts of one state, for dicts with sharded tensors, and where the user has
    declared it. Rank 0's items are restored on all ranks, and rank-local items only on their rank.
    """
    global_state, rank0 = saved.global_state, saved.documents.structure.rank0
    tensors = {number for _, tree in global_state.parts for number in numbers_in(tree.node, ArrayLeaf)}
    parts = tensors | saved.structure.in_parts.keys()
    around_own = {exact(tree.path)[:end] for tree in saved.rank_local for end in range(1, len(tree.path) + 1)}

    def belongs(item: Absent) -> bool:
        place, numbers = exact(item.path), item.numbers
        if item.is_none:
            return False
        if not numbers:
            return place in global_state.part_paths
        if any(place[:end] in rank0 for end in range(1, len(place) + 1)):
            return False
        if place in around_own or not numbers.isdisjoint(saved.own):
            return False
        has_shards = any(isinstance(leaf, ShardedLeaf) for _, leaf in walk_tree(item.around, ()))
        return numbers <= parts or has_shards or declared(item.path)

    return belongs
