"""This rank's share of a state: planned alike on every rank, laid out for this one.

What one rank alone has, it saves. What some ranks hold alike, shards of tensors, is shared out among these, fewer
holders first, on top of what they have; what all ranks hold levels the load. The rules are those of
:mod:`deeppart.plan.shards`; every rank computes only the sets that it is in.

Which ranks hold the same shards is found out once for a structure (:func:`find_holders`). Each rank tells what it has
of a tensor to the rank that keeps the book on it, so no rank hears of all shards of all ranks.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from deeppart.comm import Comm, exchange, finish, raise_together
from deeppart.errors import StructureMismatchError
from deeppart.model import Box, LeafSpec
from deeppart.partition import usual_kappa
from deeppart.plan.shards import Claim, Verdict, in_order, judge, share_set
from deeppart.state.capture import ShareLayout, lay_out
from deeppart.state.compare import StateLayout, trained_leaves
from deeppart.state.document import encode_path
from deeppart.state.fingerprint import hash63
from deeppart.state.paths import readable, some_names
from deeppart.state.tensors import LeafType
from deeppart.state.tree import FlatState, ShardedLeaf, overlapping

#: (leaf, first byte, bytes)
_Span = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Leaves:
    """Numbers of the leaves with bytes, by who has them.

    Attributes:
        shared: on all ranks, in the structure that they share.
        rank0: rank 0's, for all.
        own: of this rank alone.
        everywhere: shards that all ranks hold.
        held: shards by the ranks that hold them: some, but not all.
    """

    shared: list[int]
    rank0: list[int]
    own: list[int]
    everywhere: list[int]
    held: dict[tuple[int, ...], list[int]]


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
    """Plan the share of this rank: all ranks compute the same plan and exchange sizes of per-rank leaves only."""
    leaves, types = _leaves(layout, flat, holders, comm.size), layout.types
    kappa_bytes = _kappa(comm, leaves, types, kappa, within, holders)
    carried = np.zeros(comm.size, dtype=np.int64)
    carries = leaves.own + leaves.rank0
    carried[comm.rank] = sum(types[i].nbytes for i in carries) + kappa_bytes * len(carries)
    if layout.differing[: flat.shared[0]].any() or all_tell:
        carried = _everyones(comm, carried, within)
    planning = _Planning(comm, layout, flat, kappa_bytes)
    failure = ""
    rank_spans = [(leaf, 0, types[leaf].nbytes) for leaf in leaves.own]
    for size in _set_sizes(comm, leaves, within) if holders is not None else ():
        sets = {ranks: held for ranks, held in leaves.held.items() if len(ranks) == size}
        try:
            rank_spans += planning.of_sets(sets, carried)
        except Exception as error:  # the other ranks go on
            failure = f"{type(error).__name__}: {error}"
        carried = _everyones(comm, planning.added(carried), within)
    if failure:
        return failure
    try:
        spans, everywhere = planning.of_all(leaves, carried)
        spans += [(leaf, 0, types[leaf].nbytes) for leaf in leaves.rank0]
        return lay_out(types, spans, rank_spans + everywhere, trained_leaves(flat))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _leaves(layout: StateLayout, flat: FlatState, holders: Holders | None, size: int) -> _Leaves:
    found, per_rank = _Leaves([], [], [], [], {}), layout.per_rank
    for leaf, kind in enumerate(layout.types):
        if not kind.nbytes or leaf in layout.aliases:
            continue
        if not per_rank[leaf]:
            found.shared.append(leaf)
        elif flat.shared[0] <= leaf < flat.common[0]:
            found.rank0.append(leaf)
        elif leaf < flat.before_shards or holders is None or len(holders.ranks[leaf]) == 1:
            found.own.append(leaf)
        elif len(holders.ranks[leaf]) == size:
            found.everywhere.append(leaf)
        else:
            found.held.setdefault(holders.ranks[leaf], []).append(leaf)
    return found


class _Planning:
    """One plan being made, as this rank sees it."""

    def __init__(self, comm: Comm, layout: StateLayout, flat: FlatState, kappa: int) -> None:
        self._rank, self._kappa = comm.rank, kappa
        self._types, self._flat, self._load = layout.types, flat, 0
        #: Of each shard, what brings those of one tensor into one order on all ranks.
        self._offsets = {n: box for leaf in flat.sharded for n, box in zip(leaf.numbers, leaf.boxes, strict=True)}

    def of_sets(self, sets: dict[tuple[int, ...], list[int]], carried: npt.NDArray[np.int64]) -> list[_Span]:
        """This rank's spans of shards that some ranks hold."""
        found: list[_Span] = []
        for ranks, held in sorted(sets.items()):
            ordered = self._in_order(held)
            plan = share_set(self._specs(ordered), self._kappa, carried[list(ranks)])
            share = plan.share(ranks.index(self._rank))
            found += [(ordered[span.leaf], span.start, span.length) for span in share.spans]
        self._load += sum(length for _, _, length in found) + self._kappa * len(found)
        return found

    def added(self, carried: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What ranks carry, with what this one was given since the last time."""
        carried = carried.copy()
        carried[self._rank] += self._load
        self._load = 0
        return carried

    def of_all(self, leaves: _Leaves, carried: npt.NDArray[np.int64]) -> tuple[list[_Span], list[_Span]]:
        """This rank's spans of what all ranks hold: of leaves in the shared structure, and of shards."""
        shards = self._in_order(leaves.everywhere)
        numbers = leaves.shared + shards
        plan = share_set(self._specs(numbers), self._kappa, carried)
        spans = [(numbers[span.leaf], span.start, span.length) for span in plan.share(self._rank).spans]
        is_shard = set(shards)
        return [each for each in spans if each[0] not in is_shard], [each for each in spans if each[0] in is_shard]

    def _specs(self, numbers: Sequence[int]) -> list[LeafSpec]:
        paths, types = self._flat.arrays, self._types
        return [LeafSpec(readable(paths[i].path), types[i].nbytes, types[i].itemsize) for i in numbers]

    def _in_order(self, shards: Sequence[int]) -> list[int]:
        """Shards in an order that is the same on all ranks that hold them."""
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
    """The cost of a span; of the usual ones, where ranks hold other shards, the least."""
    if kappa is not None:
        return int(kappa)
    held = [leaf for each in leaves.held.values() for leaf in each] + leaves.everywhere
    mine = [leaf for leaf in leaves.own if holders is not None and leaf in holders.ranks]
    counted = leaves.shared + (held + mine if holders is not None else [])
    usual = usual_kappa(np.array([types[i].nbytes for i in counted], dtype=np.int64))
    if holders is None:
        return usual
    return int(-_everyones(comm, np.array([-usual], dtype=np.int64), within)[0])


def _set_sizes(comm: Comm, leaves: _Leaves, within: tuple[str, float]) -> list[int]:
    """How many ranks the sets of holders have, on any rank, ascending."""
    found = np.zeros(comm.size + 1, dtype=np.int64)
    found[[len(ranks) for ranks in leaves.held]] = 1
    sizes: list[int] = np.flatnonzero(_everyones(comm, found, within)).tolist()
    return sizes


def _everyones(comm: Comm, values: npt.NDArray[np.int64], within: tuple[str, float]) -> npt.NDArray[np.int64]:
    what, timeout = within
    return finish(comm, comm.maximum(values), what, timeout)


_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Holders:
    """The ranks that hold the same shards as this one.

    Attributes:
        ranks: leaf number of a shard -> all ranks that hold the same one, ascending.
        untied: shards that share memory with another here, but not in the same way on all of these ranks.
    """

    ranks: dict[int, tuple[int, ...]]
    untied: tuple[int, ...]

    def sets(self, flat: FlatState, layout: StateLayout) -> dict[tuple[int, ...], list[int]]:
        """The ranks that hold shards alike, two at least -> this rank's leaves with bytes, in one order on all."""
        found: dict[tuple[int, ...], list[int]] = {}
        for leaf in flat.sharded:
            for number in leaf.numbers:
                if len(self.ranks[number]) > 1 and layout.types[number].nbytes and number not in layout.aliases:
                    found.setdefault(self.ranks[number], []).append(number)
        order = {n: (_key(leaf), box) for leaf in flat.sharded for n, box in zip(leaf.numbers, leaf.boxes, strict=True)}
        return {ranks: sorted(numbers, key=order.__getitem__) for ranks, numbers in found.items()}

    def alone(self, leaves: Collection[int], rank: int) -> Holders:
        """The same, if this rank alone holds some of its shards."""
        return Holders({**self.ranks, **dict.fromkeys(leaves, (rank,))}, self.untied)


def find_holders(comm: Comm, flat: FlatState, layout: StateLayout, within: tuple[str, float]) -> Holders:
    """Find out who else holds this rank's shards (collective)."""
    what, timeout = within
    keepers = [hash63(_key(leaf).encode()) % comm.size for leaf in flat.sharded]
    ties = _ties(flat, layout)
    claims: list[list[Any]] = [[] for _ in range(comm.size)]
    for leaf, keeper in zip(flat.sharded, keepers, strict=True):
        boxes = [[*box, ties.get(number, "")] for number, box in zip(leaf.numbers, leaf.boxes, strict=True)]
        claims[keeper].append([_key(leaf), readable(leaf.path), str(leaf.kind), leaf.kind.shape, boxes])
    told = finish(comm, exchange(comm, [json.dumps(each).encode() for each in claims]), what, timeout)
    verdicts, faults = _judged([json.loads(text) for text in told])
    raise_together(comm, _fault(faults, what) or _torn_memory(flat, layout, what), what, timeout)
    answers = finish(comm, exchange(comm, [json.dumps(each).encode() for each in verdicts]), what, timeout)
    return _taken(flat, keepers, [iter(json.loads(text)) for text in answers], ties)


def _judged(told: list[list[Any]]) -> tuple[list[list[Any]], list[str]]:
    """The answer to each rank, in the order in which it has asked; and what is wrong."""
    claims: dict[str, dict[int, Claim]] = {}
    names: dict[str, str] = {}
    for rank, entries in enumerate(told):
        for key, name, kind, shape, boxes in entries:
            found = tuple(Box(tuple(offset), tuple(sizes)) for offset, sizes, _ in boxes)
            claim = Claim(kind, tuple(shape), found, tuple(tie for _, _, tie in boxes))
            claims.setdefault(key, {})[rank] = claim
            names[key] = name
    faults: list[str] = []
    verdicts: dict[str, dict[int, Verdict]] = {}
    for key, of_ranks in claims.items():
        judged = judge(names[key], of_ranks)
        if isinstance(judged, str):
            faults.append(judged)
        else:
            verdicts[key] = judged
    if faults:
        return [[] for _ in told], faults
    answers = [[_answer(verdicts[entry[0]][rank]) for entry in entries] for rank, entries in enumerate(told)]
    return answers, faults


def _answer(verdict: Verdict) -> list[Any]:
    return [verdict.holders, verdict.tied]


def _taken(flat: FlatState, keepers: list[int], answers: list[Iterator[Any]], ties: dict[int, str]) -> Holders:
    ranks: dict[int, tuple[int, ...]] = {}
    untied: list[int] = []
    known: dict[tuple[int, ...], tuple[int, ...]] = {}  # thousands of shards have a handful of sets
    for leaf, keeper in zip(flat.sharded, keepers, strict=True):
        holders, tied = next(answers[keeper])
        for number, found, is_tied in zip(leaf.numbers, map(tuple, holders), tied, strict=True):
            ranks[number] = known.setdefault(found, found)
            if number in ties and not is_tied:
                untied.append(number)
    return Holders(ranks, tuple(untied))


def _torn_memory(flat: FlatState, layout: StateLayout, what: str) -> StructureMismatchError | None:
    """A tensor that only some ranks have is saved for itself: of memory that it shares, a restore would not know."""
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


def _ties(flat: FlatState, layout: StateLayout) -> dict[int, str]:
    """What names the shard whose memory each tied shard shares."""
    names = {number: (leaf, box) for leaf in flat.sharded for number, box in zip(leaf.numbers, leaf.boxes, strict=True)}
    found = {}
    for index, alias in layout.own_aliases.items():
        if index in names:
            leaf, box = names[alias.owner]
            found[index] = f"{_key(leaf)} {box}"
    return found


def _key(leaf: ShardedLeaf) -> str:
    return json.dumps(encode_path(leaf.path))


def _fault(faults: list[str], what: str) -> StructureMismatchError | None:
    if not faults:
        return None
    return StructureMismatchError(
        f"{what}: the ranks' shards of a tensor are not that tensor",
        expected="each element in one shard, or in equal ones of several ranks; one dtype and whole shape on all ranks",
        found=some_names(faults, "; ", _SHOWN),
        todo="give every rank that has a part of the tensor to checkpoint(), from meshes that hold all of it; "
        "nothing was saved",
    )
