"""Where a planner of DCP puts what it loads: looked at before anything is changed.

DCP's own reader goes from item to item: it asks the planner for a tensor, fills it, and gives it back. Here, all are
asked for first. A planner may give one buffer for every item, or state the same memory under several names; what shares
memory is brought beside, and handed over item by item.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, LoadPlanner
from torch.distributed.checkpoint.planner import ReadItem

from deeppart.errors import LeafMismatchError
from deeppart.interop.dcp.stored import Wanted
from deeppart.model.boxes import Box
from deeppart.state.document.ties import extent
from deeppart.state.memory.held import freed_memory
from deeppart.state.tree.leaves import is_plain, overlaps_itself


class Destination(NamedTuple):
    """One item of a plan.

    Attributes:
        item: what is read.
        given: the planner's tensor for it.
        memory: what is filled: the same tensor, or one beside it.
        is_beside: it is another one.
    """

    item: ReadItem
    given: torch.Tensor
    memory: torch.Tensor
    is_beside: bool

    @property
    def wanted(self) -> Wanted:
        """The box of the stored tensor that is read, and what it is put into."""
        first = self.item.storage_index.offset or torch.Size([0] * len(self.item.storage_offsets))
        offset = tuple(a + b for a, b in zip(first, self.item.storage_offsets, strict=True))
        return Wanted(Box(offset, tuple(self.item.lengths)), self.memory)


def destinations(
    planner: LoadPlanner, items: Sequence[ReadItem], dtype_of: Callable[[str], torch.dtype], *, may_refuse: bool
) -> list[Destination]:
    """Ask a planner where it puts the tensors of a plan."""
    given = [planner.resolve_tensor(item) for item in items]
    for item, tensor in zip(items, given, strict=True):
        _check(item, tensor, dtype_of(item.storage_index.fqn))
    # Those of a planner that copies them on are its own business, not the state.
    apart = set[int]() if may_refuse and not _commits(planner) else _sharing_memory(given)
    found = []
    for place, (item, tensor) in enumerate(zip(items, given, strict=True)):
        memory, is_beside = tensor.detach(), place in apart or not is_plain(tensor)
        if is_beside:
            memory = torch.empty(tuple(item.lengths), dtype=dtype_of(item.storage_index.fqn))
        found.append(Destination(item, tensor, memory, is_beside))
    return found


def hand_over(planner: LoadPlanner, filled: Sequence[Destination]) -> None:
    """Give a planner its tensors back, with what was read in them."""
    with torch.no_grad():
        for each in filled:
            if each.is_beside:
                each.given.detach().copy_(each.memory)
            planner.commit_tensor(each.item, each.given)


def _commits(planner: LoadPlanner) -> bool:
    """True if a planner does something of its own with tensors that were filled."""
    commit: Any = getattr(planner.commit_tensor, "__func__", planner.commit_tensor)
    return commit is not DefaultLoadPlanner.commit_tensor


def _check(item: ReadItem, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    name, sizes = item.storage_index.fqn, tuple(item.lengths)
    if tuple(tensor.shape) != sizes:
        raise LeafMismatchError(
            f"a tensor of the planner has another shape than what it asks for: {name}",
            expected=f"shape {list(sizes)}",
            found=f"shape {list(tensor.shape)}",
        )
    if not is_plain(tensor):  # how it takes a plain one is its own business
        try:
            with torch.no_grad():
                torch.empty_like(tensor.detach()).copy_(torch.zeros(sizes, dtype=dtype))
        except Exception as error:  # of whatever kind
            raise _unwritable(name, f"a {type(tensor).__name__}: {type(error).__name__}: {error}") from error
        return
    if overlaps_itself(tensor):
        raise _unwritable(name, f"elements that share memory, of strides {list(tensor.stride())}")
    if tensor.is_inference() and tensor.dtype != dtype and not torch.is_inference_mode_enabled():
        raise _unwritable(name, "an inference tensor of another dtype than the stored one")
    first, nbytes = extent(tensor)
    storage = tensor.untyped_storage()
    if nbytes and (end := first + nbytes - storage.data_ptr()) > storage.nbytes():
        raise freed_memory(name, end, storage.nbytes())


def _unwritable(name: str, found: str) -> LeafMismatchError:
    return LeafMismatchError(
        f"a tensor of the planner cannot be filled: {name}",
        expected="a tensor whose elements have memory of their own, and that takes them by copy_()",
        found=found,
        todo="put another tensor in its place in the state that is given to dcp.load",
    )


def _sharing_memory(tensors: Sequence[torch.Tensor]) -> set[int]:
    """Places of those that lie, perhaps, in memory of another one; of those that are no plain tensors, none.

    Not :func:`~deeppart.state.document.ties.overlapping`, which is exact, and compares each with each where a
    planner has one buffer for thousands of items.
    """
    ranges: list[tuple[str, int, int, int]] = []
    for place, tensor in enumerate(tensors):
        if is_plain(tensor) and tensor.numel():
            first, nbytes = extent(tensor)
            ranges.append((str(tensor.device), first, first + nbytes, place))
    ranges.sort()
    found: set[int] = set()
    reach: tuple[str, int, int] | None = None  # device, end and place of what reaches furthest
    for device, first, end, place in ranges:
        if reach is not None and reach[0] == device and first < reach[1]:
            found |= {place, reach[2]}
        if reach is None or reach[0] != device or end > reach[1]:
            reach = device, end, place
    return found
