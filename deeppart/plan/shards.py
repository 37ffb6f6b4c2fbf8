"""Sharded tensors: which rank has what of them, whether that is all, and how ranks share out what several hold. Pure.

What one rank alone has, it saves. Then come the sets of ranks that hold shards alike, fewer ranks first; those of one
size do not know of what others of this size are given. What all ranks hold comes last, and levels the load. The
library and its simulator both follow these rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from deeppart.model import Box, Division, LeafSpec
from deeppart.partition import DEFAULT_KAPPA_BYTES, IntArray, Leaves, Plan, partition, usual_kappa_of


@dataclass(frozen=True, slots=True)
class Claim:
    """What one rank says that it holds of a tensor.

    Attributes:
        kind: the tensor's dtype and whole shape, as text.
        shape: its whole shape.
        boxes: the rank's shards that are not empty.
        tied_to: what names the tensor whose shards have the memory of all of these; "" if there is none.
    """

    kind: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    tied_to: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What ranks hold of a tensor together.

    Attributes:
        division: all boxes.
        tied_to: the tensor that shares the memory of all shards, on all ranks; "" if there is none.
        holders: rank -> for each of its boxes, the ranks that have the same one, ascending.
    """

    division: Division
    tied_to: str
    holders: dict[int, tuple[tuple[int, ...], ...]]


def judge(path: str, claims: Mapping[int, Claim]) -> Verdict | str:
    """Which ranks hold the same shards of one tensor; or what is wrong with what they hold together.

    Called for each tensor on one rank, which is found by the tensor's path: so no rank hears of all shards.
    """
    ranks = sorted(claims)
    first = claims[ranks[0]]
    for rank in ranks:
        if claims[rank].kind != first.kind:
            return f"{path} is {first.kind} on rank {ranks[0]}, {claims[rank].kind} on rank {rank}"
        outside = [box for box in claims[rank].boxes if not box.fits(first.shape)]
        if outside:
            return f"{path}, {first.kind}: rank {rank} has {outside[0]} of it, which lies outside"
        if len(set(claims[rank].boxes)) != len(claims[rank].boxes):
            return f"{path}, {first.kind}: rank {rank} has one shard of it twice"
    holders: dict[Box, list[int]] = {}
    for rank in ranks:
        for box in claims[rank].boxes:
            holders.setdefault(box, []).append(rank)
    division = Division.of(holders, first.shape)
    if fault := division.fault():
        return f"{path}, {first.kind}: {fault}{_who(holders)}"
    sets = {box: tuple(found) for box, found in holders.items()}
    ties = {claim.tied_to for claim in claims.values() if claim.boxes}
    return Verdict(
        division,
        ties.pop() if len(ties) == 1 else "",
        {rank: tuple(sets[box] for box in claim.boxes) for rank, claim in claims.items()},
    )


def _who(holders: Mapping[Box, Sequence[int]]) -> str:
    """The first shards and who has them."""
    shown = [f"{box} on rank {ranks[0]}" for box, ranks in sorted(holders.items())[:6]]
    return f" ({', '.join(shown)}{', ...' if len(holders) > 6 else ''})" if shown else " (no rank has any)"


class Split(NamedTuple):
    """How one dimension of a mesh splits a dimension of a tensor.

    Attributes:
        ranks: how many there are along this dimension of the mesh.
        place: of this rank among them.
        strides: runs that are split one by one; 1 for an ordinary split.
    """

    ranks: int
    place: int
    strides: int = 1


class Placed(NamedTuple):
    """A box of the tensor that a rank has, and where it lies in the rank's local tensor."""

    box: Box
    local: Box


def place_boxes(shape: Sequence[int], splits: Sequence[Sequence[Split]]) -> list[Placed]:
    """The boxes of a tensor that one rank has, without empty ones, where it is split over a mesh's dimensions in turn.

    As ``torch.distributed.tensor`` splits: each mesh dimension takes what the ones before it have left on this rank,
    cuts it into ``ranks`` pieces of equal length, rounded up, and gives rank ``place`` its piece; the last pieces are
    shorter, or empty. A strided split (``_StridedShard``: FSDP over tensor parallelism) first cuts into ``strides``
    such runs, takes the rank's piece of each, and puts these one after the other. Where the lengths do not divide,
    these pieces are no neighbours in the tensor: a rank then has several boxes of it, though its local tensor is one.
    """
    along = [_placed_runs(length, each) for length, each in zip(shape, splits, strict=True)]
    found = []
    for runs in itertools.product(*along):
        sizes = tuple(length for _, _, length in runs)
        box = Box(tuple(begin for begin, _, _ in runs), sizes)
        found.append(Placed(box, Box(tuple(at for _, at, _ in runs), sizes)))
    return [each for each in found if each.box.elements]


def _placed_runs(length: int, splits: Sequence[Split]) -> list[tuple[int, int, int]]:
    """First element in the tensor, first in the local one, and length, of what is left of a dimension."""
    runs = [(0, length)]
    for split in splits:
        together = sum(count for _, count in runs)
        pieces: list[tuple[int, int]] = []
        for begin, end in _pieces(together, split):
            pieces += _cut(runs, begin, end)
        runs = list(_joined(pieces))
    placed, at = [], 0
    for begin, count in runs:
        placed.append((begin, at, count))
        at += count
    return placed


def _pieces(length: int, split: Split) -> Iterable[tuple[int, int]]:
    """The ranges of ``length`` elements in a row that this rank gets."""
    run = -(-length // split.strides)
    for stride in range(split.strides):
        first, last = min(length, stride * run), min(length, (stride + 1) * run)
        piece = -(-(last - first) // split.ranks)
        yield min(last, first + split.place * piece), min(last, first + (split.place + 1) * piece)


def _cut(runs: Sequence[tuple[int, int]], begin: int, end: int) -> Iterable[tuple[int, int]]:
    """The elements from ``begin`` to ``end`` of runs that are counted one after another."""
    at = 0
    for first, count in runs:
        low, high = max(begin, at), min(end, at + count)
        if low < high:
            yield first + low - at, high - low
        at += count


def _joined(runs: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Runs, those that continue the one before joined to it."""
    open_run: tuple[int, int] | None = None
    for first, count in runs:
        if open_run is not None and sum(open_run) == first:
            open_run = open_run[0], open_run[1] + count
            continue
        if open_run is not None:
            yield open_run
        open_run = first, count
    if open_run is not None:
        yield open_run


def in_order(shards: Sequence[tuple[str, Box]]) -> list[int]:
    """The positions of shards (path, box) in an order that is the same on all ranks that hold them."""
    return sorted(range(len(shards)), key=shards.__getitem__)


def share_set(leaves: Sequence[LeafSpec] | Leaves, kappa: int, carried: IntArray, strategy: str = "deeppart") -> Plan:
    """The plan of one set of ranks, for what they hold alike."""
    return partition(leaves, len(carried), kappa, strategy, carried)


def least_usual_kappa(held: Iterable[tuple[int, int]]) -> int:
    """The cost of a span where none is given, and tensors are sharded: the least of what is usual on each rank."""
    return min((usual_kappa_of(nbytes, leaves) for nbytes, leaves in held), default=DEFAULT_KAPPA_BYTES)


def added_cost(plan: Plan) -> IntArray:
    """int64[ranks]: what a plan adds to what each rank carries."""
    return np.asarray(plan.bytes_per_rank() + plan.kappa * plan.spans_per_rank(), dtype=np.int64)
