"""Checks of live modules and optimizers: what they cannot take is found out before anything is touched."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch

from deeppart.errors import StructureMismatchError
from deeppart.state.document.structure import SavedBranch, SavedNode, SavedValue
from deeppart.state.restore.wrappers import bare_name
from deeppart.state.tree.flat import Branch, Node, ValueLeaf
from deeppart.state.tree.objects import is_optimizer
from deeppart.state.tree.paths import Path, readable, some_names

#: Leaves that an error names, of those that do not match.
MOST_NAMED = 10


def check_object(saved: SavedBranch, live: Branch, values: list[Any], path: Path) -> None:
    """A module cannot take keys it lacks, nor an optimizer other groups; find out before anything is touched."""
    inner_saved, inner_live = saved.children[0], live.children[0]
    if not isinstance(inner_saved, SavedBranch) or not isinstance(inner_live, Branch):
        return
    if isinstance(live.container, torch.nn.Module):
        theirs, mine = set(inner_saved.keys), set(inner_live.keys)
        extra = [key for key in inner_saved.keys if key not in mine]
        lacking = [key for key in inner_live.keys if key not in theirs]
        if extra:
            kind = type(live.container).__name__
            raise StructureMismatchError(
                f"the checkpoint has leaves that the live module lacks: {readable((*path, extra[0]))}",
                expected=f"keys {some(lacking)} (live {kind})"
                if lacking
                else f"no other keys than those of the {kind}",
                found=f"also {some(extra)} (checkpoint)",
                where=f"path {readable(path)}",
                todo="build the module as it was when it was saved, or leave them out (strict=False"
                f"{', which leaves what the checkpoint lacks at random values' if lacking else ''}); if ranks have "
                'parts of one model, such as pipeline stages, say so: replicated={"the/path/*": "parts"}',
            )
    if is_optimizer(live.container):
        if any(each.is_meta for group in live.container.param_groups for each in group["params"]):
            raise StructureMismatchError(
                f"an optimizer has parameters on the meta device, where its state would be lost: {readable(path)}",
                where=f"path {readable(path)}",
                todo="call module.to_empty(device=...) first, and build the optimizer over its parameters then",
            )
        if texts := [key for key in _state_keys(inner_saved) if isinstance(key, str) and key.isdecimal()]:
            raise StructureMismatchError(
                f"an optimizer's state was saved with texts for the numbers of parameters: {readable(path)}",
                expected="numbers, as the live optimizer has them",
                found=some(texts),
                where=f"path {readable(path)}",
                todo="DCP makes texts of them: import that checkpoint again, or give what deeppart.load gives, with "
                "numbers, to its load_state_dict()",
            )
        shapes = [list(map(len, _in_groups("params", each, values))) for each in (inner_saved, inner_live)]
        if shapes[0] != shapes[1]:
            raise StructureMismatchError(
                f"an optimizer has other parameter groups than in the checkpoint: {readable(path)}",
                expected=f"parameters per group {shapes[0]} (checkpoint)",
                found=f"{shapes[1]} (live)",
                where=f"path {readable(path)}",
                todo="build the optimizer over the same parameters, in the same groups",
            )
        # torch goes by the numbers of the parameters alone, and would give one the state of another.
        names = [chain.from_iterable(_in_groups("param_names", each, values)) for each in (inner_saved, inner_live)]
        pairs = [pair for pair in zip(*names, strict=False) if all(isinstance(name, str) for name in pair)]
        if differing := [pair for pair in pairs if bare_name(pair[0]) != bare_name(pair[1])]:
            raise StructureMismatchError(
                f"an optimizer has other parameters than in the checkpoint, or in another order: {readable(path)}",
                expected=f"{some([theirs for theirs, _ in differing])} (checkpoint)",
                found=f"{some([mine for _, mine in differing])} (live)",
                where=f"path {readable(path)}",
                todo="give the optimizer named_parameters() in the order in which they were saved; or, if only the "
                "names have changed, parameters()",
            )


def _state_keys(state_dict: SavedBranch) -> Sequence[object]:
    """What the state of an optimizer has for its parameters."""
    state = dict(zip(state_dict.keys, state_dict.children, strict=True)).get("state")
    return state.keys if isinstance(state, SavedBranch) else ()


def _in_groups(name: str, state_dict: SavedBranch | Branch, values: list[Any]) -> list[Sequence[Any]]:
    """The list of this name in each group of an optimizer's state_dict; empty where there is none."""
    groups = _plain(dict(zip(state_dict.keys, state_dict.children, strict=True)).get("param_groups"), values)
    found = [group.get(name) for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
    return [each if isinstance(each, (list, tuple)) else () for each in found]


def _plain(node: SavedNode | Node | None, values: list[Any]) -> Any:
    """Lists, dicts and small values, with None for anything else."""
    if isinstance(node, (SavedValue, ValueLeaf)):
        return values[node.index] if isinstance(node, SavedValue) else node.value
    if not isinstance(node, (SavedBranch, Branch)):
        return None
    items = [_plain(child, values) for child in node.children]
    return items if node.kind in ("list", "tuple") else dict(zip(node.keys, items, strict=False))


def some(keys: Any) -> str:
    """The first keys, and how many there are."""
    return some_names(list(map(repr, keys)), most=MOST_NAMED)
