"""A planner for ``dcp.save`` that divides what is written evenly among ranks, or nodes.

Of torch's classes it uses what DefaultSavePlanner documents for subclasses: ``create_local_plan``,
``create_global_plan``, ``finish_plan`` and ``lookup_object``, and its attributes ``state_dict`` and ``mappings``. It
needs no private name.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import xxhash
from torch.distributed.checkpoint import DefaultSavePlanner, Metadata, SavePlan
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from deeppart.config import check_choice, node_name
from deeppart.errors import ReplicaDivergenceWarning, warn_now
from deeppart.extension import Box, leaf_bytes
from deeppart.partition import LeafSpec, partition

#: What ``torch.save`` adds to the bytes of a tensor: the cost of a span, so that files are balanced with all in them.
FRAME_BYTES = 1570
#: The same of a small value, all of it.
VALUE_BYTES = 1261
#: Tensors below this are written whole: the frame of a piece would be a large part of it.
LEAST_SPLIT_BYTES = 4096
#: Pieces begin and end at whole rows where a row is at most this part of what a rank should write.
_MOST_OF_A_SHARE = 1 / 200
#: Their bytes need not be counted.
_SMALL_TYPES = frozenset({int, float, bool, complex, type(None)})
_MOST_NAMES = 8
#: Elements of a tensor that are compared between ranks.
_SAMPLED = 16


@dataclass(frozen=True, slots=True)
class RankNotes:
    """What the coordinator must know of a rank, beside its plan."""

    node: str
    #: Of what is no tensor.
    value_bytes: Mapping[str, int]
    #: A fingerprint of some elements of each tensor that may be split.
    samples: Mapping[MetadataIndex, int]


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
    one that differs is written whole by the lowest rank, with a :class:`deeppart.errors.ReplicaDivergenceWarning` on
    the coordinator. Differences elsewhere in a tensor are not noticed. (:func:`deeppart.checkpoint` compares
    everything.)

    Args:
        flatten_state_dict, flatten_sharded_tensors, dedup_replicated_tensors: as of DefaultSavePlanner.
        dedup_save_to_lowest_rank: as of DefaultSavePlanner: what ranks share is written whole by the lowest. Nothing
            is balanced then.
        enable_plan_caching: taken and not used: every save is planned anew, as what is balanced may have changed.
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
        enable_plan_caching: bool = False,
        *,
        files: Literal["rank", "node"] = "rank",
        node: str | None = None,
    ) -> None:
        super().__init__(
            flatten_state_dict, flatten_sharded_tensors, dedup_replicated_tensors, dedup_save_to_lowest_rank
        )
        self._files = check_choice("files", files, ("rank", "node"))
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
            tensor = super().lookup_object(item.index) if _nbytes(item) >= LEAST_SPLIT_BYTES else None
            if tensor is not None and _can_be_split(tensor, item):
                indices.append(item.index)
                tensors.append(tensor)
        samples = dict(zip(indices, _samples(tensors), strict=True))
        return RankNotes(node_name() if self._node is None else self._node, value_bytes, samples)


def _box_of(item: WriteItem) -> Box:
    assert item.tensor_data is not None
    chunk = item.tensor_data.chunk
    return Box(tuple(chunk.offsets), tuple(chunk.sizes))


def _holds(outer: Box, inner: Box) -> bool:
    return inner.within(outer).fits(outer.sizes)


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
    """A view of memory as a tensor with a separate storage: DCP's writer copies views of larger storages."""
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


# --- who writes which items: the plans of all ranks, divided by the partitioner. No process groups. ---
#
# An item that several ranks have is written by one of them, or in pieces by several. A piece is a box: a range of rows
# as a rule; where a row is a large part of what a rank should write, the range begins and ends within one. DCP's
# readers take boxes of any kind.


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
