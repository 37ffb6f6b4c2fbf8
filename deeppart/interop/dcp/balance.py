"""Who writes which items of a DCP checkpoint: the plans of all ranks, divided by the partitioner. No process groups.

An item that several ranks have is written by one of them, or in pieces by several. A piece is a box: a range of rows
as a rule; where a row is a large part of what a rank should write, the range begins and ends within one. DCP's readers
take boxes of any kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from deeppart.extension import Box
from deeppart.partition import LeafSpec, partition

#: What ``torch.save`` adds to the bytes of a tensor: the cost of a span, so that files are balanced with all in them.
FRAME_BYTES = 1570
#: The same of a small value, all of it.
VALUE_BYTES = 1261
#: Tensors below this are written whole: the frame of a piece would be a large part of it.
LEAST_SPLIT_BYTES = 4096
#: Pieces begin and end at whole rows where a row is at most this part of what a rank should write.
_MOST_OF_A_SHARE = 1 / 200


@dataclass(frozen=True, slots=True)
class RankNotes:
    """What the coordinator must know of a rank, beside its plan."""

    node: str
    #: Of what is no tensor.
    value_bytes: Mapping[str, int]
    #: A fingerprint of some elements of each tensor that may be split.
    samples: Mapping[MetadataIndex, int]


@dataclass(slots=True)
class _Held:
    """An item, the ranks that have it, and whether some of these have something else under its name."""

    item: WriteItem
    ranks: list[int]
    sample: int | None
    differs: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Shared:
    """An item that more than one place could write: whether it may be split, its cost, and place -> rank."""

    item: WriteItem
    splits: bool
    cost: int
    writers: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Division:
    """What is written by whom."""

    #: Of each rank, in the order of the plans.
    items: tuple[list[WriteItem], ...]
    #: Names of tensors of which ranks have different ones, and the ranks that differ from the lowest.
    differing: Mapping[str, list[int]]


def divide(plans: Sequence[Sequence[WriteItem]], notes: Sequence[RankNotes], *, by_node: bool = False) -> Division:
    """Divide the items of all ranks.

    An item of several ranks that have different tensors under its name is written whole, by the lowest.
    """
    held = _held(plans, notes)
    places = _places(notes, by_node)
    value_bytes = {name: count for each in reversed(notes) for name, count in each.value_bytes.items()}
    found: list[list[WriteItem]] = [[] for _ in plans]
    load = [0] * (max(places) + 1)
    shared: list[_Shared] = []
    for each in held:
        # The lowest rank with it, by place.
        writers = {places[rank]: rank for rank in reversed(each.ranks)}
        cost = _cost(each.item, value_bytes)
        if each.differs or len(writers) == 1 or not cost:
            found[each.ranks[0]].append(each.item)
            load[places[each.ranks[0]]] += cost + FRAME_BYTES
        else:
            shared.append(_Shared(each.item, each.sample is not None, cost, writers))
    for rank, item in _shares(shared, load):
        found[rank].append(item)
    return Division(tuple(found), {each.item.index.fqn: each.differs for each in held if each.differs})


def _held(plans: Sequence[Sequence[WriteItem]], notes: Sequence[RankNotes]) -> list[_Held]:
    """All items, in the order in which they are first met."""
    found: dict[MetadataIndex, _Held] = {}
    for rank, plan in enumerate(plans):
        for item in plan:
            sample = notes[rank].samples.get(item.index)
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
    """A shard without elements, which may be said to begin where another one does."""
    return item.type is WriteItemType.SHARD and _nbytes(item) == 0


def _nbytes(item: WriteItem) -> int:
    data = item.tensor_data
    return 0 if data is None else math.prod(data.chunk.sizes) * data.properties.dtype.itemsize


def _cost(item: WriteItem, value_bytes: Mapping[str, int]) -> int:
    """Bytes beside the frame; of a value, which has another one, at least 1."""
    if item.type is WriteItemType.BYTE_IO:
        return max(1, value_bytes.get(item.index.fqn, VALUE_BYTES) - FRAME_BYTES)
    return _nbytes(item)


def _places(notes: Sequence[RankNotes], by_node: bool) -> list[int]:
    """What is balanced: the number of each rank's node, or of itself."""
    if not by_node:
        return list(range(len(notes)))
    numbers: dict[str, int] = {}
    return [numbers.setdefault(each.node, len(numbers)) for each in notes]


def _shares(shared: Sequence[_Shared], load: list[int]) -> Iterator[tuple[int, WriteItem]]:
    """(rank, item) of all that more than one place could write, on top of what they write anyway.

    What must stay whole and is large goes first, the largest to the place with the least; the partitioner shares out
    the rest, which fills up what is left.
    """
    most = (sum(each.cost for each in shared) + sum(load)) / len(load) * _MOST_OF_A_SHARE
    boulders = [each for each in shared if not each.splits and each.cost > most]
    for each in sorted(boulders, key=lambda each: -each.cost):
        place = min(each.writers, key=lambda place: (load[place], place))
        load[place] += each.cost + FRAME_BYTES
        yield each.writers[place], each.item
    rest = [each for each in shared if each.splits or each.cost <= most]
    everywhere = len(load)
    specs = [
        LeafSpec(
            each.item.index.fqn,
            each.cost,
            _unit_bytes(each, most),
            None if len(each.writers) == everywhere else tuple(sorted(each.writers)),
        )
        for each in rest
    ]
    table = partition(specs, everywhere, kappa=FRAME_BYTES, preload=load).table()
    for place, leaf, start, length in zip(*(column.tolist() for column in table), strict=True):
        each = rest[leaf]
        for piece in [each.item] if length == each.cost else _pieces(each.item, start, length):
            yield each.writers[place], piece


def _unit_bytes(shared: _Shared, most: float) -> int:
    """Pieces have multiples of so many bytes: a row of the first dimension whose rows are small enough.

    Of what cannot be split, all.
    """
    data = shared.item.tensor_data
    unit = shared.cost
    if data is not None and shared.splits:
        for length in data.chunk.sizes:
            unit //= length
            if unit <= most:
                break
    return unit


def _pieces(item: WriteItem, start: int, length: int) -> list[WriteItem]:
    """A range of bytes of a tensor, or of a shard of one, as items of their own."""
    data = item.tensor_data
    assert data is not None
    width = data.properties.dtype.itemsize
    sizes = tuple(data.chunk.sizes)
    found = []
    for box in Box.of_range(sizes, start // width, (start + length) // width):
        offsets = torch.Size(a + b for a, b in zip(data.chunk.offsets, box.offset, strict=True))
        chunk = ChunkStorageMetadata(offsets, torch.Size(box.sizes))
        found.append(
            WriteItem(
                MetadataIndex(item.index.fqn, offsets),
                WriteItemType.SHARD,
                tensor_data=replace(data, chunk=chunk),
            )
        )
    return found
