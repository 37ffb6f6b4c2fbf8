"""A planner for ``dcp.save`` that divides what is written evenly among ranks, or nodes.

Of torch's classes it uses what DefaultSavePlanner documents for subclasses: ``create_local_plan``,
``create_global_plan``, ``finish_plan`` and ``lookup_object``, and its attributes ``state_dict`` and ``mappings``. It
needs no private name.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import xxhash
from torch.distributed.checkpoint import DefaultSavePlanner, Metadata, SavePlan
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from deeppart.config import node_name
from deeppart.errors import ConfigError, ReplicaDivergenceWarning, warn_now
from deeppart.extension import Box, leaf_bytes
from deeppart.interop.dcp.balance import LEAST_SPLIT_BYTES, VALUE_BYTES, RankNotes, divide

#: Their bytes need not be counted.
_SMALL_TYPES = frozenset({int, float, bool, complex, type(None)})
_MOST_NAMES = 8
#: Elements of a tensor that are compared between ranks.
_SAMPLED = 16


@dataclass(frozen=True)
class _Message:
    """What a rank sends as ``planner_data``, with what DefaultSavePlanner leaves there."""

    mappings: Any
    notes: RankNotes


class BalancedSavePlanner(DefaultSavePlanner):
    """Plans of which every rank writes as many bytes as the others; what is written, any ``dcp.load`` reads.

    ``dcp.save(state, checkpoint_id=path, planner=BalancedSavePlanner())``, with DCP's own writer, also for
    ``dcp.async_save`` with threads or with a process. Nothing is sent but plans.

    DefaultSavePlanner gives each tensor that ranks share, whole, to the rank that has the least so far. Here the
    partitioner divides them: a tensor may be written in pieces by several ranks. A piece is a range of rows; where a
    row is more than 1/200 of what a rank should write, pieces end within rows. Shards of a DTensor that several ranks
    have (HSDP, tensor beside data parallelism) are divided among these. Those that one rank has, it writes, and gets
    less of the rest. What stays whole: values that are no tensors; tensors below 4 KiB, of subclasses, quantized ones.
    Where the rest suffices to make up for what is whole, no rank writes more than 1.02 times the mean, and some kB for
    the frames of pieces. Values other than numbers are serialized once more, to count their bytes.

    DCP takes it that a plain tensor is the same on all ranks that have one of its name, and keeps one copy. Pieces of
    tensors that differ would make one that no rank had. So 16 elements of each tensor of more than 4 KiB are compared;
    one that differs is written whole by the lowest rank, with a :class:`deeppart.ReplicaDivergenceWarning` on the
    coordinator. Differences elsewhere in a tensor are not noticed. (:func:`deeppart.checkpoint` compares everything.)

    Args:
        flatten_state_dict, flatten_sharded_tensors, dedup_replicated_tensors: as of DefaultSavePlanner.
        dedup_save_to_lowest_rank: as of DefaultSavePlanner: what ranks share is written whole by the lowest. Nothing
            is balanced then.
        files: ``"rank"``: every rank writes. ``"node"``: of the ranks of a node that have a tensor, the lowest writes
            what the node writes of it, and nodes are balanced. Where all ranks have all tensors, a node has one file
            with content; DCP's writer makes an empty one for each other rank. Shards that one rank has stay with it,
            as DCP's planners cannot move data. One rank per node writes with one thread, unless the writer's
            ``thread_count`` says more, which is slower where one thread does not fill the storage.
        node: the name of this rank's node, the same on all of its ranks; None for the host's.

    Raises:
        ConfigError: ``files`` is neither.
    """

    def __init__(
        self,
        flatten_state_dict: bool = True,
        flatten_sharded_tensors: bool = True,
        dedup_replicated_tensors: bool | None = None,
        dedup_save_to_lowest_rank: bool = False,
        *,
        files: Literal["rank", "node"] = "rank",
        node: str | None = None,
    ) -> None:
        super().__init__(
            flatten_state_dict, flatten_sharded_tensors, dedup_replicated_tensors, dedup_save_to_lowest_rank
        )
        if files not in ("rank", "node"):
            raise ConfigError("impossible value for files", expected='"rank" or "node"', found=repr(files))
        self._files = files
        self._node = node
        self._local: Mapping[str, Sequence[WriteItem]] = {}
        self._final: Mapping[MetadataIndex, WriteItem] = {}

    def create_local_plan(self) -> SavePlan:
        """What this rank has."""
        plan = super().create_local_plan()
        by_name: dict[str, list[WriteItem]] = {}
        for item in plan.items:
            by_name.setdefault(item.index.fqn, []).append(item)
        self._local, self._final = by_name, {}
        return replace(plan, planner_data=_Message(plan.planner_data, self._notes(plan)))

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """What each rank writes."""
        return super().create_global_plan(self._divided(all_plans))

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """What this rank writes."""
        self._final = {item.index: item for item in new_plan.items if item.type is not WriteItemType.BYTE_IO}
        return super().finish_plan(new_plan)

    def lookup_object(self, index: MetadataIndex) -> Any:
        """A value, a tensor, or a piece of one, as a view of it."""
        item = self._final.get(index)
        if item is None or item.tensor_data is None:
            return super().lookup_object(index)
        box = _box_of(item)
        home = next(each for each in self._local[index.fqn] if _holds(_box_of(each), box))
        if _box_of(home) == box:
            return super().lookup_object(index)
        return _alone(super().lookup_object(home.index).detach()[box.within(_box_of(home)).slices()])

    def _divided(self, plans: Sequence[SavePlan]) -> list[SavePlan]:
        """The plans that ranks have sent, with the items that each shall write."""
        messages: list[_Message] = [plan.planner_data for plan in plans]
        items = [list(plan.items) for plan in plans]
        if not self.dedup_save_to_lowest_rank:
            notes = [each.notes for each in messages]
            division = divide(items, notes, by_node=self._files == "node")
            items = list(division.items)
            if division.differing:
                _warn(division.differing)
        return [
            replace(plan, items=mine, planner_data=message.mappings)
            for plan, mine, message in zip(plans, items, messages, strict=True)
        ]

    def _notes(self, plan: SavePlan) -> RankNotes:
        value_bytes = {
            item.index.fqn: _value_bytes(self.state_dict[item.index.fqn])
            for item in plan.items
            if item.type is WriteItemType.BYTE_IO
        }
        indices, tensors = [], []
        for item in plan.items:
            tensor = super().lookup_object(item.index) if _is_large(item) else None
            if tensor is not None and _can_be_split(tensor, item):
                indices.append(item.index)
                tensors.append(tensor)
        samples = dict(zip(indices, _samples(tensors), strict=True))
        return RankNotes(self._node_name(), value_bytes, samples)

    def _node_name(self) -> str:
        return node_name() if self._node is None else self._node


def _box_of(item: WriteItem) -> Box:
    assert item.tensor_data is not None
    chunk = item.tensor_data.chunk
    return Box(tuple(chunk.offsets), tuple(chunk.sizes))


def _holds(outer: Box, inner: Box) -> bool:
    return inner.within(outer).fits(outer.sizes)


def _is_large(item: WriteItem) -> bool:
    data = item.tensor_data
    return data is not None and math.prod(data.chunk.sizes) * data.properties.dtype.itemsize >= LEAST_SPLIT_BYTES


def _can_be_split(tensor: Any, item: WriteItem) -> bool:
    """True of plain tensors, of which any rectangular view can be saved by itself."""
    assert item.tensor_data is not None
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tuple(tensor.shape) == tuple(item.tensor_data.chunk.sizes)
        and not (tensor.is_quantized or tensor.is_meta)
    )


def _alone(piece: torch.Tensor) -> torch.Tensor:
    """A view of memory as a tensor with a storage of its own there: DCP's writer copies views of larger storages."""
    if not (piece.is_cpu and piece.is_contiguous() and piece.numel()) or piece.is_conj() or piece.is_neg():
        return piece
    return torch.from_numpy(leaf_bytes(piece)).view(piece.dtype).view(piece.shape)


def _samples(tensors: Sequence[torch.Tensor]) -> list[int]:
    """A digest of some elements of each tensor, spread over it."""
    found = []
    for tensor in tensors:
        places = torch.linspace(0, tensor.numel() - 1, _SAMPLED, dtype=torch.float64).long()
        index = torch.unravel_index(places.to(tensor.device), tensor.shape)
        found.append(tensor.detach()[index].resolve_conj().resolve_neg().contiguous().view(torch.uint8))
    host = [each.cpu() for each in found]
    return [xxhash.xxh3_64_intdigest(leaf_bytes(each).data) for each in host]


class _Counting:
    """A file that counts."""

    def __init__(self) -> None:
        self.nbytes = 0

    def write(self, data: Any) -> int:
        length = memoryview(data).nbytes
        self.nbytes += length
        return length

    def flush(self) -> None:
        pass


def _value_bytes(value: Any) -> int:
    """What ``torch.save`` makes of a value; a guess where it fails, as writing it then does, too."""
    if type(value) in _SMALL_TYPES:
        return VALUE_BYTES
    counting = _Counting()
    try:
        torch.save(value, counting)  # type: ignore[arg-type]
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError, RecursionError):
        return VALUE_BYTES
    return counting.nbytes


def _warn(differing: Mapping[str, list[int]]) -> None:
    names = sorted(differing)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    warn_now(
        "ranks have different tensors under one name, of which DCP keeps one: that of the lowest rank is saved. "
        + ", ".join(f"{name} (of rank {differing[name][0]})" for name in names[:_MOST_NAMES])
        + more,
        ReplicaDivergenceWarning,
    )
