"""Plans this rank's share of a state: the same plan on every rank, laid out for this one.

Each rank saves its rank-local leaves. Shards that some ranks have equal replicas of are divided between these, sets
with fewer holders first, on top of their own bytes; leaves that all ranks have level the load. The rules are those of
:mod:`deeppart.plan.shards`; every rank computes only the sets that it belongs to.

The holders of shards are determined once per structure (:func:`find_holders`). Each rank sends its boxes of a tensor to
the tensor's keeper rank, so no rank receives the shards of all ranks. All ranks receive the division of each tensor:
then a shard is a number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart.comm import Comm, finish, raise_together
from deeppart.errors import StructureMismatchError
from deeppart.model import Box, Division, LeafSpec
from deeppart.partition import usual_kappa
from deeppart.plan.shards import Claim, Verdict, in_order, judge, share_set
from deeppart.state.capture import ShareLayout, lay_out
from deeppart.state.compare import StateLayout, trained_leaves
from deeppart.state.document import SavedTensor, decode_division, encode_division, encode_path
from deeppart.state.fingerprint import hash63
from deeppart.state.paths import readable, some_names
from deeppart.state.tensors import LeafType
from deeppart.state.tree import FlatState, ShardedLeaf, overlapping

#: (leaf, first byte, bytes)
_Span = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Leaves:
    """Numbers of the arrays that have bytes, by the ranks that have them.

    Attributes:
        all: those that all ranks have, shards last.
        some: shards that some ranks have, by these ranks.
        alone: those that this rank saves, also as rank 0 for all.
    """

    all: list[int] = field(default_factory=list)
    some: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    alone: list[int] = field(default_factory=list)


def plan_share(
    comm: Comm,
    layout: StateLayout,
    flat: FlatState,
    kappa: float | None,
    within: tuple[str, float],
    *,
    all_tell: bool,
    holders: Holders | None = None,
) -> ShareLayout | str:
    """Plan the share of this rank: all ranks compute the same plan, and exchange only the sizes of per-rank leaves."""
    leaves, types = _leaves(layout, flat, holders, comm.size), layout.types
    kappa_bytes = _kappa(comm, leaves, types, kappa, within, holders)
    carried = np.zeros(comm.size, dtype=np.int64)
    carried[comm.rank] = sum(types[i].nbytes for i in leaves.alone) + kappa_bytes * len(leaves.alone)
    if layout.differing[layout.shared].any() or all_tell:
        carried = _everyones(comm, carried, within)
    planning = _Planning(comm, layout, flat, kappa_bytes)
    failure = ""
    spans = [(leaf, 0, types[leaf].nbytes) for leaf in leaves.alone]
    for size in _set_sizes(comm, leaves, within) if holders is not None else ():
        sets = {ranks: held for ranks, held in leaves.some.items() if len(ranks) == size}
        try:
            spans += planning.of_sets(sets, carried)
        except Exception as error:  # of any type: the other ranks continue
            failure = f"{type(error).__name__}: {error}"
        carried = _everyones(comm, planning.added(carried), within)
    if failure:
        return failure
    try:
        is_own = layout.own
        is_own[list(holders.own if holders is not None else ())] = True
        own = [span for span in spans if is_own[span[0]]]
        shared = planning.of_all(leaves, carried) + [span for span in spans if not is_own[span[0]]]
        return lay_out(types, shared, own, trained_leaves(flat))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _leaves(layout: StateLayout, flat: FlatState, holders: Holders | None, size: int) -> _Leaves:
    found, per_rank, ranks_of = _Leaves(), layout.per_rank, {} if holders is None else holders.ranks
    for leaf, kind in enumerate(layout.types):
        if not kind.nbytes or leaf in layout.aliases:
            continue
        ranks = ranks_of.get(leaf, ())
        if not per_rank[leaf] or 1 < len(ranks) == size:
            found.all.append(leaf)
        elif len(ranks) > 1:
            found.some.setdefault(ranks, []).append(leaf)
        else:
            found.alone.append(leaf)
    return found


class _Planning:
    """A plan in progress, as this rank computes it."""

    def __init__(self, comm: Comm, layout: StateLayout, flat: FlatState, kappa: int) -> None:
        self._rank, self._kappa = comm.rank, kappa
        self._types, self._flat, self._load = layout.types, flat, 0
        #: For each shard a key that orders the shards of one tensor in the same way on all ranks.
        self._offsets = {n: box for leaf in flat.sharded for n, box in zip(leaf.numbers, leaf.boxes, strict=True)}

    def of_sets(self, sets: dict[tuple[int, ...], list[int]], carried: npt.NDArray[np.int64]) -> list[_Span]:
        """This rank's spans of shards that some ranks have."""
        found: list[_Span] = []
        for ranks, held in sorted(sets.items()):
            ordered = self._in_order(held)
            plan = share_set(self._specs(ordered), self._kappa, carried[list(ranks)])
            share = plan.share(ranks.index(self._rank))
            found += [(ordered[span.leaf], span.start, span.length) for span in share.spans]
        self._load += sum(length for _, _, length in found) + self._kappa * len(found)
        return found

    def added(self, carried: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The bytes of all ranks, including those that this one was assigned since the last call."""
        carried = carried.copy()
        carried[self._rank] += self._load
        self._load = 0
        return carried

    def of_all(self, leaves: _Leaves, carried: npt.NDArray[np.int64]) -> list[_Span]:
        """This rank's spans of leaves that all ranks have: of the shared structure, and of shards."""
        shards = [leaf for leaf in leaves.all if leaf in self._offsets]
        numbers = leaves.all[: len(leaves.all) - len(shards)] + self._in_order(shards)
        plan = share_set(self._specs(numbers), self._kappa, carried)
        return [(numbers[span.leaf], span.start, span.length) for span in plan.share(self._rank).spans]

    def _specs(self, numbers: Sequence[int]) -> list[LeafSpec]:
        paths, types = self._flat.arrays, self._types
        return [LeafSpec(readable(paths[i].path), types[i].nbytes, types[i].itemsize) for i in numbers]

    def _in_order(self, shards: Sequence[int]) -> list[int]:
        """Shards in an order that is the same on all holders."""
        order = in_order([(readable(self._flat.arrays[leaf].path), self._offsets[leaf]) for leaf in shards])
        return [shards[position] for position in order]


def _kappa(
    comm: Comm,
    leaves: _Leaves,
    types: Sequence[LeafType],
    kappa: float | None,
    within: tuple[str, float],
    holders: Holders | None,
) -> int:
    """The cost of a span; the lowest of the defaults if ranks have different shards."""
    if kappa is not None:
        return int(kappa)
    some = [leaf for each in leaves.some.values() for leaf in each]
    mine = [leaf for leaf in leaves.alone if holders is not None and leaf in holders.ranks]
    counted = leaves.all + some + mine
    usual = usual_kappa(np.array([types[i].nbytes for i in counted], dtype=np.int64))
    if holders is None:
        return usual
    return int(-_everyones(comm, np.array([-usual], dtype=np.int64), within)[0])


def _set_sizes(comm: Comm, leaves: _Leaves, within: tuple[str, float]) -> list[int]:
    """The sizes of the sets of holders on all ranks, ascending."""
    found = np.zeros(comm.size + 1, dtype=np.int64)
    found[[len(ranks) for ranks in leaves.some]] = 1
    sizes: list[int] = np.flatnonzero(_everyones(comm, found, within)).tolist()
    return sizes


def _everyones(comm: Comm, values: npt.NDArray[np.int64], within: tuple[str, float]) -> npt.NDArray[np.int64]:
    what, timeout = within
    return finish(comm, comm.maximum(values), what, timeout)


_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Holders:
    """The global tensors, and the ranks that have the same shards as this one.

    Attributes:
        tensors: all global tensors, in the order of their numbers; the same on all ranks.
        numbers: for each sharded tensor of this rank its index among these.
        boxes: leaf number of a shard -> its number in the division of its tensor.
        ranks: leaf number of a shard -> all ranks that have the same shard, ascending.
        own: shards of which other ranks have other bytes.
    """

    tensors: tuple[SavedTensor, ...] = ()
    numbers: tuple[int, ...] = ()
    boxes: dict[int, int] = field(default_factory=dict)
    ranks: dict[int, tuple[int, ...]] = field(default_factory=dict)
    own: frozenset[int] = frozenset()

    def sets(self, flat: FlatState, layout: StateLayout) -> dict[tuple[int, ...], list[int]]:
        """Ranks with the same shards, at least two -> this rank's leaves, in the same order on all of them."""
        found: dict[tuple[int, ...], list[int]] = {}
        order: dict[int, tuple[int, int]] = {}
        for leaf, tensor in zip(flat.sharded, self.numbers, strict=True):
            for number in leaf.numbers:
                order[number] = tensor, self.boxes[number]
                if len(self.ranks[number]) > 1 and layout.types[number].nbytes and number not in layout.aliases:
                    found.setdefault(self.ranks[number], []).append(number)
        return {ranks: sorted(numbers, key=order.__getitem__) for ranks, numbers in found.items()}

    def untied(self, flat: FlatState) -> list[int]:
        """The shards of tensors that are not tied as a whole to the same tensor on all ranks."""
        return [
            number
            for leaf, tensor in zip(flat.sharded, self.numbers, strict=True)
            for number in leaf.numbers
            if self.tensors[tensor].owner is None
        ]

    def alone(self, leaves: frozenset[int], rank: int) -> Holders:
        """A copy in which this rank is the only holder of some shards."""
        return replace(self, ranks={**self.ranks, **dict.fromkeys(leaves, (rank,))}, own=leaves)


def find_holders(comm: Comm, flat: FlatState, layout: StateLayout, within: tuple[str, float]) -> Holders:
    """Find the other holders of this rank's shards, and the divisions of all tensors (collective)."""
    what, timeout = within
    keepers = [hash63(_key(leaf).encode()) % comm.size for leaf in flat.sharded]
    ties = _ties(flat, layout)
    claims: list[list[Any]] = [[] for _ in range(comm.size)]
    for leaf, keeper in zip(flat.sharded, keepers, strict=True):
        kind = leaf.kind
        claims[keeper].append([_key(leaf), readable(leaf.path), kind.dtype, kind.shape, leaf.boxes, ties[leaf.index]])
    verdicts, faults = _find_verdicts(_exchanged(comm, claims, within))
    raise_together(comm, _fault(faults, what) or _shared_memory_error(flat, layout, what), what, timeout)
    answers = [[each.holders[rank] for each in verdicts.values() if rank in each.holders] for rank in range(comm.size)]
    answered = _exchanged(comm, answers, within)
    mine = [
        [key, dtype, each.division.shape, encode_division(each.division), each.tied_to]
        for (key, dtype), each in verdicts.items()
    ]
    rows = [json.loads(text) for text in finish(comm, comm.allgather(json.dumps(mine).encode()), what, timeout)]
    tensors = sorted((row for each in rows for row in each), key=lambda row: row[0])
    indexes = {key: index for index, (key, *_) in enumerate(tensors)}
    return _holders_from(flat, keepers, list(map(iter, answered)), _described(tensors, indexes), indexes)


def _exchanged(comm: Comm, lists: Iterable[list[Any]], within: tuple[str, float]) -> list[list[Any]]:
    """A list for each rank; returns those for this one (collective)."""
    received = finish(comm, comm.exchange([json.dumps(each).encode() if each else b"" for each in lists]), *within)
    return [json.loads(text or b"[]") for text in received]


def _find_verdicts(described: list[list[Any]]) -> tuple[dict[tuple[str, str], Verdict], list[str]]:
    """The holders of each tensor, by its key and dtype, in ascending order; and the faults."""
    claims: dict[str, dict[int, Claim]] = {}
    names: dict[str, tuple[str, str]] = {}
    for rank, entries in enumerate(described):
        for key, name, dtype, shape, boxes, tied_to in entries:
            found = tuple(Box(tuple(offset), tuple(sizes)) for offset, sizes in boxes)
            kind = str(LeafType("torch", dtype, tuple(shape)))
            claims.setdefault(key, {})[rank] = Claim(kind, tuple(shape), found, tied_to)
            names.setdefault(key, (name, dtype))
    verdict_of = {key: judge(names[key][0], of_ranks) for key, of_ranks in sorted(claims.items())}
    verdicts = {(key, names[key][1]): each for key, each in verdict_of.items() if not isinstance(each, str)}
    return verdicts, [each for each in verdict_of.values() if isinstance(each, str)]


def _described(rows: Sequence[Any], indexes: Mapping[str, int]) -> tuple[SavedTensor, ...]:
    """The tensors, from the rows sent by their keepers."""
    found = []
    divisions: dict[str, Division] = {}  # thousands of tensors share a handful of divisions
    for _, dtype, shape, division, tied_to in rows:
        text = f"{shape} {division}"
        if text not in divisions:
            divisions[text] = decode_division(division, tuple(shape))
        kind = LeafType("torch", dtype, tuple(shape))
        found.append(SavedTensor(kind, divisions[text], indexes[tied_to] if tied_to else None))
    return tuple(found)


def _holders_from(
    flat: FlatState,
    keepers: list[int],
    answers: list[Iterator[Any]],
    tensors: tuple[SavedTensor, ...],
    indexes: Mapping[str, int],
) -> Holders:
    ranks: dict[int, tuple[int, ...]] = {}
    boxes: dict[int, int] = {}
    known: dict[tuple[int, ...], tuple[int, ...]] = {}  # thousands of shards share a handful of sets
    numbers = tuple(indexes[_key(leaf)] for leaf in flat.sharded)
    # Keepers have answered in the order of the keys.
    for leaf, keeper, tensor in sorted(zip(flat.sharded, keepers, numbers, strict=True), key=lambda each: each[2]):
        holders = next(answers[keeper])
        for number, box, found in zip(leaf.numbers, leaf.boxes, map(tuple, holders), strict=True):
            ranks[number] = known.setdefault(found, found)
            box_number = tensors[tensor].division.number(box)
            assert box_number is not None, "this rank's boxes are in the division"
            boxes[number] = box_number
    return Holders(tensors, numbers, boxes, ranks)


def _shared_memory_error(flat: FlatState, layout: StateLayout, what: str) -> StructureMismatchError | None:
    """The error if a tensor that only some ranks have shares memory: a restore could not tie it."""
    if not any(each.part for each in flat.rank_local):
        return None
    arrays = {index: data for index, data in enumerate(flat.data) if index not in layout.own_aliases}
    paths = {number: leaf.path for leaf in flat.sharded for number in leaf.numbers}
    found = overlapping(arrays)
    if paths.keys().isdisjoint(found):
        return None
    names = [readable(paths[index] if index in paths else flat.arrays[index].path) for index in found]
    return StructureMismatchError(
        f"{what}: a tensor that only some ranks have, or have shards of, shares memory with another leaf",
        expected="memory of its own, or the whole memory of another such tensor",
        found=some_names(names, most=_SHOWN),
        todo="leave one of them out, which the other one brings back; or give all ranks both; nothing was saved",
    )


def _ties(flat: FlatState, layout: StateLayout) -> list[str]:
    """For each sharded tensor the name of the one to which all of its shards are tied on this rank; "" if none.

    A shard is only tied to the same box of another tensor.
    """
    of_shards = {number: leaf for leaf in flat.sharded for number in leaf.numbers}
    found = []
    for leaf in flat.sharded:
        aliases = [layout.own_aliases.get(number) for number in leaf.numbers]
        owners = {_key(of_shards[alias.owner]) if alias is not None else "" for alias in aliases}
        found.append(owners.pop() if len(owners) == 1 else "")
    return found


def _key(leaf: ShardedLeaf) -> str:
    return json.dumps(encode_path(leaf.path))


def _fault(faults: list[str], what: str) -> StructureMismatchError | None:
    if not faults:
        return None
    return StructureMismatchError(
        f"{what}: the ranks' shards do not make up the tensor",
        expected="each element in one shard, or in equal shards of several ranks; one dtype and shape on all ranks",
        found=some_names(faults, "; ", _SHOWN),
        todo="give every rank that has a part of the tensor to checkpoint(), from meshes that hold all of it; "
        "nothing was saved",
    )
