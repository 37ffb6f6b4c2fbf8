"""Sharded tensors without process groups, and checkpoints of them: each rank is a thread of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import deeppart
from deeppart.comm import Comm
from deeppart.model import Box
from tests.unit.comm.worlds import LIMIT_S, on_all, world


class Piece(torch.Tensor):
    """Boxes of a whole tensor, which says of itself where they lie; one after another in a row of elements."""

    global_shape: Any
    global_offsets: Any
    local_offsets: Any
    local_sizes: Any


def piece(whole: torch.Tensor, box: Box | None) -> Any:
    """What one rank has of a tensor: a box, or nothing."""
    nothing = whole.new_empty((0,) * whole.ndim)
    x = (nothing if box is None else whole[box.slices()].clone()).as_subclass(Piece)
    x.global_shape, found = tuple(whole.shape), [] if box is None else [box]
    x.global_offsets = [each.offset for each in found]
    x.local_sizes = [each.sizes for each in found]
    x.local_offsets = [(0,) * whole.ndim] * len(found)
    return x


def rows(whole: torch.Tensor, rank: int, ranks: int) -> Any:
    """What a rank has, if each has a run of rows."""
    length = -(-len(whole) // ranks)
    begin = min(len(whole), rank * length)
    count = min(len(whole), begin + length) - begin
    rest = tuple(whole.shape[1:])
    return piece(whole, Box((begin, *(0 for _ in rest)), (count, *rest)) if count else None)


def save(root: Path, states: Sequence[Any], step: int = 1, **settings: Any) -> None:
    """A checkpoint of one state for each rank."""

    def saved(comm: Comm) -> None:
        with checkpointer(root, comm, **settings) as ck:
            ck.checkpoint(states[comm.rank], step).wait("persistent", timeout=LIMIT_S)

    on_ranks(len(states), saved)


def restore(root: Path, states: Sequence[Any], *, on_nodes: bool = False, replicated: Any = "auto", **how: Any) -> int:
    """Restore into one state for each rank; the step.

    Args:
        replicated: the setting of that name.
        on_nodes: each rank is taken for one of another node, whose memory the others cannot see.
        how: for ``restore()``.
    """

    def restored(comm: Comm) -> Any:
        with checkpointer(root, comm, node_size=1 if on_nodes else None, replicated=replicated) as ck:
            return ck.restore(states[comm.rank], **how)

    (step,) = set(on_ranks(len(states), restored))
    return int(step)


def same(one: Any, other: Any) -> bool:
    """True if two states hold the same, in values of the same types."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(item, other[key]) for key, item in one.items())
    return type(one) is type(other) and one == other


def checkpointer(root: Path, comm: Comm, **settings: Any) -> deeppart.Checkpointer:
    return deeppart.Checkpointer(persistent_dir=root, comm=comm, timeout=LIMIT_S, **settings)


def on_ranks(size: int, call: Callable[[Comm], Any]) -> list[Any]:
    """What the call returns on each of so many ranks; the first error, if any rank has one."""
    with world(size) as comms:
        found = on_all(size, lambda rank: call(comms[rank]))
    for each in found:
        if isinstance(each, Exception):
            raise each
    return found
