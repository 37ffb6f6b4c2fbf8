"""Checks of live modules and optimizers: what they cannot take is found out before anything is touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from deeppart.errors import StructureMismatchError
from deeppart.state.document.structure import SavedBranch, SavedValue
from deeppart.state.tree.flat import Branch, ValueLeaf
from deeppart.state.tree.naming import some_names
from deeppart.state.tree.paths import Path, readable

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
    if isinstance(live.container, torch.optim.Optimizer):
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
        shapes = [_group_sizes(inner_saved, values), _group_sizes(inner_live, values)]
        if shapes[0] != shapes[1]:
            raise StructureMismatchError(
                f"an optimizer has other parameter groups than in the checkpoint: {readable(path)}",
                expected=f"parameters per group {shapes[0]} (checkpoint)",
                found=f"{shapes[1]} (live)",
                where=f"path {readable(path)}",
                todo="build the optimizer over the same parameters, in the same groups",
            )


def _state_keys(state_dict: SavedBranch) -> Sequence[object]:
    """What the state of an optimizer has for its parameters."""
    state = dict(zip(state_dict.keys, state_dict.children, strict=True)).get("state")
    return state.keys if isinstance(state, SavedBranch) else ()


def _group_sizes(state_dict: SavedBranch | Branch, values: list[Any]) -> list[int]:
    """Number of parameters in each group of an optimizer's state_dict."""
    groups = dict(zip(state_dict.keys, state_dict.children, strict=True)).get("param_groups")
    if isinstance(groups, (SavedValue, ValueLeaf)):  # a run: so many that hold nothing but small values
        return _run_group_sizes(values[groups.index] if isinstance(groups, SavedValue) else groups.value)
    sizes = []
    for group in groups.children if isinstance(groups, (SavedBranch, Branch)) else []:
        if isinstance(group, (SavedBranch, Branch)):
            params = dict(zip(group.keys, group.children, strict=True)).get("params")
            if isinstance(params, (SavedBranch, Branch)):
                sizes.append(len(params.children))
            elif isinstance(params, (SavedValue, ValueLeaf)):
                value = values[params.index] if isinstance(params, SavedValue) else params.value
                sizes.append(len(value) if isinstance(value, (list, tuple)) else 0)
    return sizes


def _run_group_sizes(groups: Any) -> list[int]:
    found = [group.get("params") for group in groups if isinstance(group, dict)]
    return [len(params) for params in found if isinstance(params, (list, tuple))]


def some(keys: Any) -> str:
    """The first keys, and how many there are."""
    return some_names(list(map(repr, keys)), most=MOST_NAMED)
