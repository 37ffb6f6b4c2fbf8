"""The live state that a restore fills: taken apart, and refused where it could not be filled or saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from deeppart._gc import collection_paused
from deeppart.errors import DeeppartError, StateError, UnsupportedLeafError
from deeppart.state.restore.target import Target
from deeppart.state.tree.flat import ApartRules, FlatState
from deeppart.state.tree.flatten import flatten
from deeppart.state.tree.globs import Excluded
from deeppart.state.tree.leaves import check_tensor, overlaps_itself
from deeppart.state.tree.objects import is_optimizer
from deeppart.state.tree.paths import Path, readable
from deeppart.state.tree.runs import encode_leaf_value


def flatten_live(state: Any, excluded: Sequence[str] = (), *, is_filled: bool = True) -> FlatState:
    """Take a live state apart, to be filled; whatever its objects raise becomes a StateError."""
    options: dict[str, Any] = {"live": True} if is_filled else {"live": True, "may_ask": _is_of_torch}
    try:
        with collection_paused():
            if not excluded:
                return flatten(state, **options)
            cuts = ApartRules(excluded=Excluded(excluded), leaves_out=False)
            try:
                return flatten(state, cuts=cuts, **options)
            except UnsupportedLeafError:
                return flatten(state, cuts=replace(cuts, leaves_out=True), **options)
    except DeeppartError:
        raise
    except Exception as error:  # from the caller's objects: the other ranks are waiting to hear of it
        raise StateError("looking at the state failed", found=f"{type(error).__name__}: {error}") from error


def _is_of_torch(item: Any) -> bool:
    """True for objects whose state_dict() only looks."""
    return is_optimizer(item) or isinstance(item, (torch.nn.Module, torch.optim.lr_scheduler.LRScheduler))


def refusal_of_state(flat: FlatState, is_left_out: Callable[[Path], bool] | None = None) -> DeeppartError | None:
    """The reason why a state cannot be saved, if there is nothing to restore: found now, not at the first save."""
    try:
        for unmade in flat.unmade:
            if is_left_out is None or not is_left_out(unmade.path):
                check_tensor(torch.empty(0, device="meta"), readable(unmade.path))
        for leaf in flat.values:
            if is_left_out is None or not is_left_out(leaf.path):
                encode_leaf_value(leaf.value, readable(leaf.path))
    except DeeppartError as error:
        return error
    return None


def check_writable(target: Target, flat: FlatState, paths: list[Path]) -> None:
    """Raise StateError for a live array that cannot be written in place."""
    written = [(index, data) for index, data in target.live.items() if index not in target.tied]
    written += target.casts.items()
    written += [(index, flat.data[number]) for index, leaf in target.sharded.items() for number in leaf.numbers]
    for index, data in written:
        if overlaps_itself(data):
            raise StateError(
                "a live array has several elements at one place in memory and cannot be restored in place",
                found=f"shape {list(data.shape)}, as expand() makes it",
                where=f"path {readable(paths[index])}",
                todo="give restore a contiguous one: clone() it",
            )
    for index, data in (target.live | target.casts).items():
        if isinstance(data, np.ndarray) and not data.flags.writeable:
            raise StateError(
                "a live array is read-only and cannot be restored in place",
                where=f"path {readable(paths[index])}",
                todo="give restore a writable array",
            )
