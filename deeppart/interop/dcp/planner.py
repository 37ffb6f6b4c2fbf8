"""A planner for ``dcp.save`` that divides what is written evenly among ranks, or nodes.

Of torch's classes it uses what DefaultSavePlanner documents for subclasses: ``create_local_plan``,
``create_global_plan``, ``finish_plan`` and ``lookup_object``, and its attributes ``state_dict`` and ``mappings``. It
needs no private name.

Plans of earlier saves of this process are kept, so that ranks whose plan is the same need not send it again. DCP's own
cache has one place for each class of planners. This one has a place for each state that is saved: what all ranks
together have is known by a hash of all their plans, the *key*. Ranks learn it from the coordinator, so that all of a
process group drop the same entries.
"""

from __future__ import annotations

import math
import pickle
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import xxhash
from torch.distributed.checkpoint import DefaultSavePlanner, Metadata, SavePlan
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from deeppart.config import node_name
from deeppart.errors import ConfigError, ReplicaDivergenceWarning, StateError, warn_now
from deeppart.interop.dcp.balance import LEAST_SPLIT_BYTES, VALUE_BYTES, RankNotes, divide
from deeppart.model import Box
from deeppart.state.tree.fingerprint import sampled_digests
from deeppart.state.tree.leaves import flat_bytes, lies_flat_on_host

#: Their bytes need not be counted.
_SMALL_TYPES = frozenset({int, float, bool, complex, type(None)})
_MOST_NAMES = 8
#: States whose plans are kept.
CAPACITY = 8


@dataclass(frozen=True)
class _Message:
    """What a rank sends as ``planner_data``, with what DefaultSavePlanner leaves there."""

    mappings: Any = None
    notes: RankNotes | None = None
    #: Of the plan and the mappings; with caching.
    digest: str = ""
    #: Keys of cached plans of which the rank's is part, where it sends neither its plan nor notes.
    same_as: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Answer:
    """What it gets back: the key of what all save; and whether to write what it wrote under this key before."""

    key: str
    again: bool


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
        enable_plan_caching: ranks whose plan has not changed do not send it again. Plans are kept by what is saved:
            states that are saved in turn do not displace each other, up to 8. Elements are compared, and values
            counted, when a plan is sent. After a save that failed, plans are sent again.
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
        if files not in ("rank", "node"):
            raise ConfigError("impossible value for files", expected='"rank" or "node"', found=repr(files))
        self._caches = enable_plan_caching
        self._files = files
        self._node = node
        self._digest = ""
        self._save = ""
        self._kept: dict[str, OwnPlan] = {}
        self._local: Mapping[str, Sequence[WriteItem]] = {}
        self._final: Mapping[MetadataIndex, WriteItem] = {}

    def create_local_plan(self) -> SavePlan:
        """What this rank has; or that it is what it was, with caching."""
        plan = super().create_local_plan()
        by_name: dict[str, list[WriteItem]] = {}
        for item in plan.items:
            by_name.setdefault(item.index.fqn, []).append(item)
        self._local, self._final = by_name, {}
        if self._caches:
            self._digest = _digest_of(plan, (self._files, self._node_name(), self.dedup_save_to_lowest_rank))
            self._save, self._kept = OWN.begin(self._digest)
            if self._kept:
                message = _Message(digest=self._digest, same_as=tuple(self._kept))
                return replace(plan, items=[], planner_data=message)
        return replace(plan, planner_data=_Message(plan.planner_data, self._notes(plan), self._digest))

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """What each rank writes."""
        messages: list[_Message] = [plan.planner_data for plan in all_plans]
        key = xxhash.xxh3_128_hexdigest("\n".join(each.digest for each in messages).encode()) if self._caches else ""
        known = GLOBAL.get(key) if self._caches else None
        if known is None:
            digests = [each.digest for each in messages]
            sent = recall(all_plans, [each.same_as for each in messages], digests)
            finished, metadata = super().create_global_plan(self._divided(sent))
            known = GlobalPlan(sent, digests, finished, metadata)
        if self._caches:
            GLOBAL.put(key, known)
        self.metadata = replace(known.metadata)
        answers = []
        for plan, final, message in zip(all_plans, known.finished, messages, strict=True):
            again = key in message.same_as
            answers.append(replace(plan, items=[] if again else final.items, planner_data=_Answer(key, again)))
        return answers, self.metadata

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """What this rank writes."""
        answer: _Answer = new_plan.planner_data
        items = self._kept[answer.key].items if answer.again else new_plan.items
        if self._caches:
            OWN.end(self._save, self._kept, answer.key, OwnPlan(self._digest, items))
        self._final = {item.index: item for item in items if item.type is not WriteItemType.BYTE_IO}
        mappings = self.mappings if self.flatten_state_dict else None
        return super().finish_plan(replace(new_plan, items=items, planner_data=mappings))

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
            notes = [each.notes for each in messages if each.notes is not None]
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
        samples = dict(zip(indices, sampled_digests(tensors), strict=True))
        return RankNotes(self._node_name(), value_bytes, samples)

    def _node_name(self) -> str:
        return node_name() if self._node is None else self._node


def _digest_of(plan: SavePlan, settings: Any) -> str:
    """A hash of what a rank has, but for the contents."""
    hasher = xxhash.xxh3_128(repr(settings).encode())
    for item in plan.items:
        data = item.tensor_data
        what = None if data is None else (data.size, data.chunk, data.properties.dtype)
        hasher.update(repr((item.index, item.type, what)).encode())
    hasher.update(repr(plan.planner_data).encode())
    return str(hasher.hexdigest())


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
    if not (lies_flat_on_host(piece) and piece.numel()):
        return piece
    return torch.from_numpy(flat_bytes(piece)).view(piece.dtype).view(piece.shape)


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


# --- plans of earlier saves ---


@dataclass(frozen=True, slots=True)
class OwnPlan:
    """What a rank keeps: the digest of the plan that it made itself, and what it was then told to write."""

    digest: str
    items: list[WriteItem]


@dataclass(frozen=True, slots=True)
class GlobalPlan:
    """What a coordinator keeps: the plans that the ranks sent, their digests, and what each was told to write."""

    sent: Sequence[SavePlan]
    digests: Sequence[str]
    finished: Sequence[SavePlan]
    metadata: Metadata
    _by_digest: dict[str, SavePlan] = field(default_factory=dict)

    def plan_of(self, rank: int, digest: str) -> SavePlan | None:
        """The plan with a digest, which a process may have sent as another rank; None if there is none."""
        if rank < len(self.sent) and self.digests[rank] == digest:
            return self.sent[rank]
        if not self._by_digest:
            self._by_digest.update(zip(self.digests, self.sent, strict=True))
        return self._by_digest.get(digest)


class GlobalPlans:
    """What a coordinator keeps, by key: the entries that were used last. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, GlobalPlan] = OrderedDict()  # under the lock

    def get(self, key: str) -> GlobalPlan | None:
        """The entry of a key."""
        with self._lock:
            return self._entries.get(key)

    def put(self, key: str, plan: GlobalPlan) -> None:
        """Keep one."""
        with self._lock:
            _put(self._entries, key, plan)

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._entries.clear()


class OwnPlans:
    """What a rank keeps. Threads may share it.

    What is here, the coordinator knows: of the saves since an entry was used last, those that have not come to their
    end may have displaced it there, as those that have. So each that was begun takes a place, and an entry is out of
    use from the beginning of a save that refers to it until that has succeeded.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, OwnPlan | None] = OrderedDict()  # under the lock; None: out of use
        self._begun = 0  # under the lock

    def begin(self, digest: str) -> tuple[str, dict[str, OwnPlan]]:
        """Begin a save; returns a name for it, and the entries with this digest."""
        with self._lock:
            found = {key: own for key, own in self._entries.items() if own is not None and own.digest == digest}
            self._entries.update(dict.fromkeys(found))
            self._begun += 1
            name = f"begun {self._begun}"
            _put(self._entries, name, None)
            return name, found

    def end(self, name: str, found: Mapping[str, OwnPlan], key: str, own: OwnPlan) -> None:
        """A save has succeeded."""
        with self._lock:
            self._entries.pop(name, None)
            self._entries.update((each, known) for each, known in found.items() if each in self._entries)
            _put(self._entries, key, own)

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._entries.clear()


def _put(entries: OrderedDict[str, Any], key: str, value: Any) -> None:
    entries[key] = value
    entries.move_to_end(key)
    while len(entries) > CAPACITY:
        entries.popitem(last=False)


OWN = OwnPlans()
GLOBAL = GlobalPlans()


def recall(plans: Sequence[SavePlan], same_as: Sequence[Sequence[str]], digests: Sequence[str]) -> list[SavePlan]:
    """The plans of all ranks, with those that were not sent again."""
    found: list[SavePlan] = []
    for rank, (plan, keys, digest) in enumerate(zip(plans, same_as, digests, strict=True)):
        entries = (entry for key in keys if (entry := GLOBAL.get(key)) is not None)
        known = next((sent for entry in entries if (sent := entry.plan_of(rank, digest)) is not None), None)
        if keys and known is None:
            raise StateError(
                "a rank refers to a plan that the coordinator of this save does not know",
                expected="a plan of an earlier save with the same coordinator",
                where=f"rank {rank}",
                todo="save again: then all plans are sent whole; for saves with other process groups in turn, "
                "without enable_plan_caching",
            )
        found.append(plan if known is None else known)
    return found
