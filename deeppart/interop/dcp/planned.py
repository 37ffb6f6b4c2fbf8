"""States of planners that decide what is saved: what a plan of DCP says, as a tree of this library.

Most planners of DCP only say who writes what, which the library decides by itself. One that leaves things out, gives
them other names or makes others of them is asked as DCP asks it: what its plan has for this rank is this rank's part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import CheckpointException, DefaultSavePlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.utils import _DistWrapper

from deeppart.errors import CheckpointError, ConfigError, UnsupportedLeafError
from deeppart.interop.dcp.names import Item, Keys, Named, nested
from deeppart.interop.dcp.pieces import Pieces
from deeppart.interop.dcp.planner import BalancedSavePlanner
from deeppart.model.boxes import Box


def decides_nothing(planner: SavePlanner | None) -> bool:
    """True if a planner saves all of a state, as it is: DCP's own, and the one of this library."""
    if planner is None:
        return True
    if type(planner) not in (DefaultSavePlanner, BalancedSavePlanner):
        return False
    if not planner.flatten_state_dict:  # type: ignore[attr-defined]
        raise ConfigError(
            "a planner would pickle inner dicts whole",
            expected="flatten_state_dict=True",
            found=f"{type(planner).__name__}(flatten_state_dict=False)",
            todo="leave it out: the state is nested again when it is loaded",
        )
    return True


def state_of(planner: SavePlanner) -> Named:
    """The state that a planner which :func:`decides_nothing` was given."""
    return nested(planner.state_dict, planner.mappings)  # type: ignore[attr-defined]


def planned_part(planner: SavePlanner, state: Mapping[str, Any], group: Any, *, alone: bool) -> Named:
    """This rank's part of a state, planned as ``dcp.save`` would (collective)."""
    ranks = _DistWrapper(group, not alone and dist.is_available() and dist.is_initialized(), 0)

    def local() -> SavePlan:
        planner.set_up_planner(dict(state), None, ranks.is_coordinator)
        return planner.create_local_plan()

    try:
        plan = ranks.reduce_scatter("plan", local, lambda plans: planner.create_global_plan(plans)[0])
    except CheckpointException as error:  # it is no Exception
        failed = {rank: f"{type(each).__name__}: {each}" for rank, (each, _) in error.failures.items()}
        raise CheckpointError(
            "the planner that dcp.async_save was given cannot plan the state",
            found="; ".join(f"rank {rank}: {text}" for rank, text in failed.items()),
            todo="see what it reports; nothing was saved",
        ) from error
    return part_of(planner.finish_plan(plan), planner)


def part_of(plan: SavePlan, planner: SavePlanner) -> Named:
    """What a plan has for this rank."""
    paths: Mapping[str, Keys] = getattr(planner, "mappings", None) or {}
    tensors: dict[str, tuple[tuple[int, ...], list[Box], list[torch.Tensor]]] = {}
    flat: dict[str, Any] = {}
    for item in plan.items:
        name = item.index.fqn
        if item.type is WriteItemType.BYTE_IO or item.tensor_data is None:
            flat[name] = _value(item, planner)
            continue
        piece = planner.resolve_data(item)
        if not isinstance(piece, torch.Tensor):
            raise UnsupportedLeafError(
                "a planner gives something else than a tensor", found=type(piece).__name__, where=f"item {name}"
            )
        chunk = item.tensor_data.chunk
        shape, boxes, pieces = tensors.setdefault(name, (tuple(item.tensor_data.size), [], []))
        boxes.append(Box(tuple(chunk.offsets), tuple(chunk.sizes)))
        pieces.append(piece.detach())
    for name, (shape, boxes, pieces) in tensors.items():
        flat[name] = pieces[0] if boxes == [Box.whole(shape)] else Pieces(shape, boxes, pieces)
    found = nested(flat, {name: _texts(paths.get(name, (name,))) for name in flat})
    items = [
        Item(item.path, tensors[name][2][0].dtype, tensors[name][0])
        if (name := item.name) in tensors
        else Item(item.path)
        for item in found.items
    ]
    return Named(found.tree, tuple(items))


def _texts(path: Keys) -> Keys:
    """Of lists, each rank may have some places: they are dicts here."""
    return tuple(map(str, path))


def _value(item: WriteItem, planner: SavePlanner) -> Any:
    """A value that is no tensor: what the planner would pickle."""
    look_up = getattr(planner, "lookup_object", None)
    if look_up is not None:
        return look_up(item.index)
    data: Any = planner.resolve_data(item)
    try:
        data.seek(0)
        return torch.load(data, weights_only=True)
    except Exception as error:  # of the planner's own
        raise UnsupportedLeafError(
            "a planner gives a value only as a pickle, which is not stored",
            found=f"{type(error).__name__}: {error}".partition("\n")[0],
            where=f"item {item.index.fqn}",
            todo="give the planner a method lookup_object(index), as DefaultSavePlanner has",
        ) from error
