"""Sharded tensors made for what a live state lacks: the state of an optimizer that has not stepped yet.

It is split like the parameter that it belongs to, as the optimizer would make it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from deeppart.errors import StructureMismatchError
from deeppart.state.document.structure import SavedArray, walk_tree
from deeppart.state.restore.target import Target
from deeppart.state.tree.flat import Branch, FlatState, Node
from deeppart.state.tree.leaves import TORCH_DTYPES
from deeppart.state.tree.objects import is_optimizer
from deeppart.state.tree.paths import Path, readable
from deeppart.state.tree.sharded import is_sharded


def create_sharded(target: Target, flat: FlatState, sharded: frozenset[int]) -> None:
    """Make what the live state lacks; puts it into ``target.created``."""
    if not flat.sharded:
        return
    optimizers = dict(_optimizers(flat.root, ()))
    for path, node in walk_tree(target.structure.tree, ()):
        if not isinstance(node, SavedArray) or _has_place(target, node.index):
            continue
        like, kind = _parameter(path, optimizers), target.types[node.index]
        if like is not None and is_sharded(like) and tuple(like.shape) == kind.shape and kind.kind == "torch":
            with torch.no_grad():
                target.created[node.index] = torch.empty_like(like.detach(), dtype=TORCH_DTYPES[kind.dtype])
        elif node.index in sharded and (like is None or is_sharded(like)):  # else it is made whole, as others are
            raise StructureMismatchError(
                "the live state lacks a sharded tensor of the checkpoint, and it is not known how to split it",
                expected=f"{kind} (checkpoint)",
                where=f"path {readable(path)}",
                todo="give restore() a state that has it: of an optimizer, what get_optimizer_state_dict returns",
            )


def _has_place(target: Target, index: int) -> bool:
    return (
        index in target.live
        or index in target.casts
        or index in target.sharded
        or index in target.dropped
        or index in target.structure.aliases
        or bool(target.structure.per_rank[index])
    )


def _optimizers(node: Node, path: Path) -> Iterator[tuple[Path, list[Any]]]:
    """The path of each live optimizer, and its parameters in the order in which its state numbers them."""
    if not isinstance(node, Branch):
        return
    if is_optimizer(node.container):
        yield path, [each for group in node.container.param_groups for each in group["params"]]
        return
    if node.kind == "object":
        yield from _optimizers(node.children[0], path)
        return
    for key, child in zip(node.keys, node.children, strict=True):
        yield from _optimizers(child, (*path, key))


def _parameter(path: Path, optimizers: dict[Path, list[Any]]) -> Any:
    """The parameter to which a leaf at ``.../state/NUMBER/NAME`` of an optimizer belongs; None if it is none."""
    parameters = optimizers.get(path[:-3], []) if len(path) >= 3 and path[-3] == "state" else []
    number = path[-2] if parameters else None
    return parameters[number] if type(number) is int and 0 <= number < len(parameters) else None
