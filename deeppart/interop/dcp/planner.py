"""A save planner for DCP that balances the written bytes between ranks.

It uses only what DefaultSavePlanner documents for subclasses: ``create_local_plan``, ``create_global_plan``,
``finish_plan``, ``lookup_object``, and the attributes ``state_dict`` and ``mappings``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import xxhash
from torch.distributed.checkpoint import DefaultSavePlanner, Metadata, SavePlan
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from deeppart.errors import ReplicaDivergenceWarning, warn_now
from deeppart.extension import Box, leaf_bytes
from deeppart.interop.dcp.names import is_dense
from deeppart.interop.outline import first_names
from deeppart.partition import LeafSpec, partition

#: What ``torch.save`` adds to a tensor's bytes: the cost of a span, so that whole files are balanced.
ARCHIVE_BYTES = 1570
#: Smaller tensors are not split: the archive overhead of each piece would be too large.
MIN_SPLIT_BYTES = 4096
#: Pieces consist of whole rows if a row is at most this fraction of a rank's share.
_MAX_ROW_FRACTION = 1 / 200
_MAX_NAMES = 8
#: Number of elements of a tensor that are compared between ranks.
_SAMPLE_SIZE = 16


class BalancedSavePlanner(DefaultSavePlanner):
    """A save planner that makes all ranks write equally many bytes of tensors; any ``dcp.load`` reads the result.

    ``dcp.save(state, checkpoint_id=path, planner=BalancedSavePlanner())``, with DCP's own writer, also for
    ``dcp.async_save`` with threads or a process. It communicates by plans only.

    DefaultSavePlanner assigns each replicated tensor as a whole to the rank with the least bytes so far. This planner
    uses the partitioner: several ranks may write pieces of a tensor. A piece is a range of rows, or ends within a row
    if a row exceeds 1/200 of a rank's share. Shards with several replicas (HSDP, tensor beside data parallelism) are
    divided among these; a rank with unreplicated shards gets less of the rest. Not split are values that are not
    tensors, and count as small, tensors below 4 KiB, tensor subclasses and quantized tensors. If the rest suffices to
    balance these, no rank writes more than 1.02 times the mean, plus a few kB of archive overhead.

    DCP assumes that plain tensors with the same name are replicas, and saves one of them. Pieces of different tensors
    would be mixed, so 16 elements of each tensor of more than 4 KiB are compared; if they differ, the lowest rank
    writes the whole tensor, and the coordinator issues a :class:`deeppart.errors.ReplicaDivergenceWarning`. Differences
    in other elements are not detected. (:func:`deeppart.checkpoint` compares everything.)

    Args:
        flatten_state_dict, flatten_sharded_tensors: as for DefaultSavePlanner. Plans are not cached, since sizes may
            have changed.
    """

    def __init__(self, flatten_state_dict: bool = True, flatten_sharded_tensors: bool = True) -> None:
        super().__init__(flatten_state_dict, flatten_sharded_tensors)
        self._local: Mapping[str, Sequence[WriteItem]] = {}
        self._final: Mapping[MetadataIndex, WriteItem] = {}

    def create_local_plan(self) -> SavePlan:
        """Plan this rank's items, with samples of its tensors for the coordinator."""
        plan = super().create_local_plan()
        by_name: dict[str, list[WriteItem]] = {}
        for item in plan.items:
            by_name.setdefault(item.index.fqn, []).append(item)
        self._local, self._final = by_name, {}
        return replace(plan, planner_data=(plan.planner_data, self._samples(plan)))

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Divide the items among the ranks."""
        return super().create_global_plan(self._balance(all_plans))

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Note the items that this rank writes."""
        self._final = {item.index: item for item in new_plan.items if item.type is not WriteItemType.BYTE_IO}
        return super().finish_plan(new_plan)

    def lookup_object(self, index: MetadataIndex) -> Any:
        """A value, a tensor, or a view of the piece of a tensor."""
        item = self._final.get(index)
        if item is None or item.tensor_data is None:
            return super().lookup_object(index)
        box = _box_of(item)
        home = next(each for each in self._local[index.fqn] if _holds(_box_of(each), box))
        if _box_of(home) == box:
            return super().lookup_object(index)
        return _without_base(super().lookup_object(home.index).detach()[box.within(_box_of(home)).slices()])

    def _balance(self, plans: Sequence[SavePlan]) -> list[SavePlan]:
        """The ranks' plans with the items that each writes."""
        mappings, samples = zip(*(plan.planner_data for plan in plans), strict=True)
        division = divide([plan.items for plan in plans], samples)
        if division.differing:
            _warn(division.differing)
        return [
            replace(plan, items=mine, planner_data=mapping)
            for plan, mine, mapping in zip(plans, division.items, mappings, strict=True)
        ]

    def _samples(self, plan: SavePlan) -> dict[MetadataIndex, int]:
        """A digest of some elements of each tensor that may be split."""
        indices, tensors = [], []
        for item in plan.items:
            tensor = super().lookup_object(item.index) if _nbytes(item) >= MIN_SPLIT_BYTES else None
            if tensor is not None and is_dense(tensor) and tuple(tensor.shape) == _box_of(item).sizes:
                indices.append(item.index)
                tensors.append(tensor)
        return dict(zip(indices, _samples(tensors), strict=True))


def _box_of(item: WriteItem) -> Box:
    assert item.tensor_data is not None
    chunk = item.tensor_data.chunk
    return Box(tuple(chunk.offsets), tuple(chunk.sizes))


def _holds(outer: Box, inner: Box) -> bool:
    return inner.within(outer).fits(outer.sizes)


def _without_base(piece: torch.Tensor) -> torch.Tensor:
    """A view as a tensor with its own storage object, as DCP's writer copies views of larger storages."""
    if not (piece.is_cpu and piece.is_contiguous() and piece.numel()) or piece.is_conj() or piece.is_neg():
        return piece
    return torch.from_numpy(leaf_bytes(piece)).view(piece.dtype).view(piece.shape)


def _samples(tensors: Sequence[torch.Tensor]) -> list[int]:
    """A digest of evenly spaced elements of each tensor."""
    found = []
    for tensor in tensors:
        positions = torch.linspace(0, tensor.numel() - 1, _SAMPLE_SIZE, dtype=torch.float64).long()
        index = torch.unravel_index(positions.to(tensor.device), tensor.shape)
        found.append(tensor.detach()[index].resolve_conj().resolve_neg().contiguous().view(torch.uint8))
    host = [each.cpu() for each in found]
    return [xxhash.xxh3_64_intdigest(leaf_bytes(each).data) for each in host]


def _warn(differing: Mapping[str, list[int]]) -> None:
    names = [f"{name} (of rank {differing[name][0]})" for name in sorted(differing)]
    warn_now(
        "ranks have different tensors with the same name, and DCP saves only one: that of the lowest rank. "
        + first_names(names, _MAX_NAMES),
        ReplicaDivergenceWarning,
    )


# --- division of the items among ranks, without process groups ---
#
# An item with replicas is written by one of its ranks, or in pieces by several. A piece is a box, usually a range of
# rows. DCP's readers support arbitrary boxes.


@dataclass(slots=True)
class _Held:
    """An item, the ranks that hold it, and the ranks that hold something else under its name."""

    item: WriteItem
    ranks: list[int]
    sample: int | None  # None for an item that is not split
    differs: list[int] = field(default_factory=list)

    @property
    def cost(self) -> int:
        """Bytes without the overhead of an archive; 1 for a value."""
        return 1 if self.item.type is WriteItemType.BYTE_IO else _nbytes(self.item)


@dataclass(frozen=True, slots=True)
class Division:
    """The items that each rank writes."""

    #: Items by rank, in the order of the plans.
    items: tuple[list[WriteItem], ...]
    #: Names of tensors that differ between ranks, and the ranks that differ from the lowest.
    differing: Mapping[str, list[int]]


def divide(plans: Sequence[Sequence[WriteItem]], samples: Sequence[Mapping[MetadataIndex, int]]) -> Division:
    """Divide the items of all ranks; the lowest rank writes tensors that differ between ranks."""
    held = _held(plans, samples)
    found: list[list[WriteItem]] = [[] for _ in plans]
    load = [0] * len(plans)
    shared: list[_Held] = []
    for each in held:
        if each.differs or len(each.ranks) == 1 or not each.cost:
            found[each.ranks[0]].append(each.item)
            load[each.ranks[0]] += each.cost + ARCHIVE_BYTES
        else:
            shared.append(each)
    for rank, item in _shares(shared, load):
        found[rank].append(item)
    return Division(tuple(found), {each.item.index.fqn: each.differs for each in held if each.differs})


def _held(plans: Sequence[Sequence[WriteItem]], samples: Sequence[Mapping[MetadataIndex, int]]) -> list[_Held]:
    """All items, in the order of their first occurrence."""
    found: dict[MetadataIndex, _Held] = {}
    for rank, plan in enumerate(plans):
        for item in plan:
            sample = samples[rank].get(item.index)
            known = found.get(item.index)
            if known is None or (_is_empty(known.item) and not _is_empty(item)):
                found[item.index] = _Held(item, [rank], sample)
            elif _type_of(item) == _type_of(known.item) and (None in (sample, known.sample) or sample == known.sample):
                known.ranks.append(rank)
                known.sample = None if sample is None else known.sample
            elif not _is_empty(item):
                known.differs.append(rank)
    return list(found.values())


def _type_of(item: WriteItem) -> Any:
    if item.tensor_data is None:
        return item.type
    data = item.tensor_data
    return item.type, data.size, data.properties.dtype, data.chunk.offsets, data.chunk.sizes


def _is_empty(item: WriteItem) -> bool:
    """True for an empty shard, whose offset may be that of another shard."""
    return item.type is WriteItemType.SHARD and _nbytes(item) == 0


def _nbytes(item: WriteItem) -> int:
    data = item.tensor_data
    return 0 if data is None else math.prod(data.chunk.sizes) * data.properties.dtype.itemsize


def _shares(shared: Sequence[_Held], load: list[int]) -> Iterator[tuple[int, WriteItem]]:
    """Assign the shared items, given the load of the ranks so far; yields (rank, item).

    Large items that cannot be split go first, the largest to the rank with the least load. The partitioner divides the
    rest, which evens out the load.
    """
    row_limit = (sum(each.cost for each in shared) + sum(load)) / len(load) * _MAX_ROW_FRACTION
    unsplittable = [each for each in shared if each.sample is None and each.cost > row_limit]
    for each in sorted(unsplittable, key=lambda each: -each.cost):
        rank = min(each.ranks, key=lambda rank: (load[rank], rank))
        load[rank] += each.cost + ARCHIVE_BYTES
        yield rank, each.item
    rest = [each for each in shared if each.sample is not None or each.cost <= row_limit]
    sets: dict[tuple[int, ...], list[_Held]] = {}
    for each in rest:
        sets.setdefault(tuple(each.ranks), []).append(each)
    for ranks, held in sorted(sets.items(), key=lambda each: (len(each[0]), each[0])):
        specs = [LeafSpec(each.item.index.fqn, each.cost, _granularity(each, row_limit)) for each in held]
        plan = partition(specs, len(ranks), kappa=ARCHIVE_BYTES, preload=[load[rank] for rank in ranks])
        for rank, cost in zip(ranks, plan.costs().tolist(), strict=True):
            load[rank] = int(cost)
        for place, leaf, start, length in zip(*(column.tolist() for column in plan.table()), strict=True):
            each = held[leaf]
            for piece in [each.item] if length == each.cost else _pieces(each.item, start, length):
                yield ranks[place], piece


def _granularity(shared: _Held, row_limit: float) -> int:
    """Pieces are multiples of so many bytes: a row of the first dimension with small enough rows, or the whole item."""
    data = shared.item.tensor_data
    nbytes = shared.cost
    if data is not None and shared.sample is not None:
        for length in data.chunk.sizes:
            nbytes //= length
            if nbytes <= row_limit:
                break
    return nbytes


def _pieces(item: WriteItem, start: int, length: int) -> list[WriteItem]:
    """A byte range of a tensor or shard as items."""
    data = item.tensor_data
    assert data is not None
    width = data.properties.dtype.itemsize
    sizes = tuple(data.chunk.sizes)
    found = []
    for box in Box.of_range(sizes, start // width, (start + length) // width):
        offsets = torch.Size(a + b for a, b in zip(data.chunk.offsets, box.offset, strict=True))
        chunk = ChunkStorageMetadata(offsets, torch.Size(box.sizes))
        index = MetadataIndex(item.index.fqn, offsets)
        found.append(WriteItem(index, WriteItemType.SHARD, tensor_data=replace(data, chunk=chunk)))
    return found
