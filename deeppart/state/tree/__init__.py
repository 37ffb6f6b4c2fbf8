"""Flattens a live state: a tree of containers, and its leaves and small values, numbered in one order on all ranks.

:func:`flatten` makes a :class:`FlatState`; :class:`Template` makes the next one of a state with the same structure much
faster. ``ties.py`` finds leaves that share memory; ``value_containers.py`` defines which lists and dicts of small
values are saved as one value.
"""

from deeppart.state.tree.flat import FlatState, Holder, RankLocalRules
from deeppart.state.tree.flattening import DEEPEST_NESTING, flatten
from deeppart.state.tree.nodes import (
    DICTS,
    ArrayLeaf,
    Branch,
    Leaf,
    Node,
    RankLocal,
    ShardedLeaf,
    UnmadeLeaf,
    ValueLeaf,
    every_node,
    inside_objects,
    numbers_in,
    units_of,
    walk_tree,
    with_items_at,
    with_units,
)
from deeppart.state.tree.template import Template
from deeppart.state.tree.ties import (
    Alias,
    address,
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
    "Holder",
    "Leaf",
    "Node",
    "RankLocal",
    "RankLocalRules",
    "ShardedLeaf",
    "Template",
    "UnmadeLeaf",
    "ValueLeaf",
    "address",
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
    "numbers_in",
    "overlapping",
    "units_of",
    "walk_tree",
    "with_items_at",
    "with_units",
]
