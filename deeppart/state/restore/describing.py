"""What stands at a place of a checkpoint or of a live state, in the words of error messages."""

from __future__ import annotations

from typing import Any

from deeppart.state.document.structure import SavedArray, SavedBranch, SavedNode, SavedValue
from deeppart.state.restore.composites import is_composite
from deeppart.state.tree.composites import SUBCLASS, branch_name
from deeppart.state.tree.flat import ArrayLeaf, Branch, Node, ShardedLeaf, UnmadeLeaf, ValueLeaf
from deeppart.state.tree.paths import Path, name_kind, readable
from deeppart.state.tree.runs import RUN_KINDS, run_kind


def first_inside(node: SavedNode | Node) -> str:
    """The first thing in a container that is not a small value, and where."""
    first = _first_that_is_no_value(node, ())
    return (
        ", with small values alone"
        if first is None
        else f", with {describe_node(first[1], None)} at {readable(first[0])}"
    )


def _first_that_is_no_value(node: SavedNode | Node, path: Path) -> tuple[Path, SavedNode | Node] | None:
    if isinstance(node, (SavedValue, ValueLeaf)):
        return None
    if not isinstance(node, (SavedBranch, Branch)) or (path and node.kind not in RUN_KINDS):
        return path, node
    for key, child in zip(node.keys, node.children, strict=True):
        if (found := _first_that_is_no_value(child, (*path, key))) is not None:
            return found
    return None


def describe_node(node: SavedNode | Node, value: Any) -> str:
    """What stands at a place, for people."""
    if isinstance(node, UnmadeLeaf):
        return f"{node.kind} on the meta device"
    if isinstance(node, (SavedBranch, Branch)) and is_composite(node):
        return (
            f"a {node.name if isinstance(node, SavedBranch) else branch_name(node.kind, node.container)}"
            if (node.kind == SUBCLASS)
            else f"a {node.kind} tensor"
        )
    if isinstance(node, (SavedBranch, Branch)):
        return f"{name_kind(node.kind)} of {len(node.children)}" if node.form is None else f"a {node.form}"
    if isinstance(node, (SavedArray, ArrayLeaf)):
        return "an array"
    if isinstance(node, ShardedLeaf):
        return f"a sharded tensor of {node.kind}"
    kind = run_kind(value)
    if kind is not None:
        return f"{name_kind(kind)} of {len(value)}"
    return "None" if value is None else f"a value of type {type(value).__name__}"
