"""Leaves of a step that the live state of this rank has no place for, because other ranks have it: pipeline stages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from deeppart.state.document.structure import DICTS, SavedArray, SavedBranch, SavedNode, walk_tree
from deeppart.state.tree.flat import Branch, Node
from deeppart.state.tree.paths import id_keys


def lacking_leaves(saved: SavedNode, live: Node) -> set[int]:
    """Numbers of the leaves whose key, or that of a container around them, a live dict lacks."""
    found: set[int] = set()
    _pruned(saved, live, found, None)
    return found


def without_leaves(saved: SavedNode, live: Node, elsewhere: Collection[int]) -> tuple[SavedNode, set[int]]:
    """A saved tree less the items of which the live state lacks the key, and other ranks have all that is in them.

    Args:
        elsewhere: numbers of the leaves that other ranks have a place for.

    Returns:
        The tree, and the numbers of the leaves that are not in it any more.
    """
    gone: set[int] = set()
    return _pruned(saved, live, gone, frozenset(elsewhere)), gone


def _pruned(saved: SavedNode, live: Node, gone: set[int], elsewhere: frozenset[int] | None) -> SavedNode:
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
        leaves = [leaf for _, leaf in walk_tree(child, ())]
        arrays = {leaf.index for leaf in leaves if isinstance(leaf, SavedArray)}
        if saved.kind in DICTS and arrays and (elsewhere is None or elsewhere.issuperset(arrays)):
            gone |= arrays
        else:
            kept.append((key, child))
    return replace(saved, keys=tuple(key for key, _ in kept), children=tuple(child for _, child in kept))
