"""Flattens a live state: a tree of containers, and its leaves and small values numbered in the same order on all ranks.

:func:`flatten` makes a :class:`FlatState`; :class:`Template` makes the next one of a state with the same structure much
faster. ``ties.py`` finds leaves that share memory; ``value_containers.py`` defines which lists and dicts of small
values are saved as one value.
"""

from deeppart.state.tree.flat import (
    FlatState,
    RankLocalRules,
)
from deeppart.state.tree.flattening import DEEPEST_NESTING, flatten
from deeppart.state.tree.nodes import (
    DICTS,
    ArrayLeaf,
    Branch,
    Leaf,
    LeafNumbers,
    Node,
    RankLocal,
    ShardedLeaf,
    UnmadeLeaf,
    ValueLeaf,
    every_node,
    inside_objects,
    units_of,
    walk_tree,
    with_items_at,
)
from deeppart.state.tree.template import Template
from deeppart.state.tree.ties import (
    Alias,
    address,
    alias_digests,
    assign,
    conflicting,
    contiguous_strides,
    find_aliases,
    memory_groups,
    overlapping,
)
from deeppart.state.tree.value_containers import (
    CONTAINER_KINDS,
    LEAST_ENTRIES,
    LEAST_ITEMS,
    LEAST_ROWS,
    container_items,
    container_kind,
    describe_leaf_value,
    holds_containers,
    in_order,
    make_container,
    paths_inside,
)

__all__ = [
    "CONTAINER_KINDS",
    "DEEPEST_NESTING",
    "DICTS",
    "LEAST_ENTRIES",
    "LEAST_ITEMS",
    "LEAST_ROWS",
    "Alias",
    "ArrayLeaf",
    "Branch",
    "FlatState",
    "Leaf",
    "LeafNumbers",
    "Node",
    "RankLocal",
    "RankLocalRules",
    "ShardedLeaf",
    "Template",
    "UnmadeLeaf",
    "ValueLeaf",
    "address",
    "alias_digests",
    "assign",
    "conflicting",
    "container_items",
    "container_kind",
    "contiguous_strides",
    "describe_leaf_value",
    "every_node",
    "find_aliases",
    "flatten",
    "holds_containers",
    "in_order",
    "inside_objects",
    "make_container",
    "memory_groups",
    "overlapping",
    "paths_inside",
    "units_of",
    "walk_tree",
    "with_items_at",
]
