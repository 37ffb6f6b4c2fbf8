"""Sharded tensors: which boxes each rank has, whether they cover the tensor, and how holders divide the saving. Pure.

A box that only one rank has is saved by it. Then come the sets of ranks with equal shards, smaller sets first; sets of
one size are planned independently. Shards that all ranks have come last, and level the load. The library and its
simulator follow the same rules.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from deeppart.model import Box, Division, LeafSpec
from deeppart.partition import IntArray, Leaves, Plan, partition


@dataclass(frozen=True, slots=True)
class Claim:
    """The shards that one rank claims to have of a tensor.

    Attributes:
        kind: the tensor's dtype and global shape, as text.
        shape: the global shape.
        boxes: the boxes of the rank's non-empty shards.
        tied_to: name of the tensor whose shards share the memory of all of these; "" if there is none.
    """

    kind: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    tied_to: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The shards that all ranks have of a tensor.

    Attributes:
        division: all boxes.
        tied_to: name of the tensor that shares the memory of all shards, on all ranks; "" if there is none.
        holders: rank -> for each of its boxes, the ranks that have the same box, ascending.
    """

    division: Division
    tied_to: str
    holders: dict[int, tuple[tuple[int, ...], ...]]


def judge(path: str, claims: Mapping[int, Claim]) -> Verdict | str:
    """The holders of each shard of one tensor; or a description of the fault if the shards do not make it up.

    Called for each tensor on one rank, which the tensor's path determines: so no rank receives all shards.
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
    """The first few shards and their holders."""
    shown = [f"{box} on rank {ranks[0]}" for box, ranks in sorted(holders.items())[:6]]
    return f" ({', '.join(shown)}{', ...' if len(holders) > 6 else ''})" if shown else " (no rank has any)"


class Split(NamedTuple):
    """How one dimension of a mesh splits a dimension of a tensor.

    Attributes:
        ranks: number of ranks along this dimension of the mesh.
        position: position of this rank among them.
        strides: runs that are split one by one; 1 for an ordinary split.
    """

    ranks: int
    position: int
    strides: int = 1


class Placed(NamedTuple):
    """A box of the tensor that a rank has, and its box in the rank's local tensor."""

    box: Box
    local: Box


def place_boxes(shape: Sequence[int], splits: Sequence[Sequence[Split]]) -> list[Placed]:
    """The non-empty boxes that one rank has of a tensor that is split over a mesh's dimensions in turn.

    As in ``torch.distributed.tensor``: each mesh dimension takes the elements that the ones before it have left on this
    rank, cuts them into ``ranks`` ranges of equal length, rounded up, and gives rank ``position`` its range; the last
    ranges are shorter, or empty. A strided split (``_StridedShard``: FSDP over tensor parallelism) first cuts into
    ``strides`` such runs, takes the rank's range of each, and concatenates these. If lengths are not divisible, they
    are not adjacent in the tensor: a rank then has several boxes of it, though one local tensor.
    """
    along = [_placed_runs(length, each) for length, each in zip(shape, splits, strict=True)]
    found = []
    for runs in itertools.product(*along):
        sizes = tuple(length for _, _, length in runs)
        box = Box(tuple(begin for begin, _, _ in runs), sizes)
        found.append(Placed(box, Box(tuple(at for _, at, _ in runs), sizes)))
    return [each for each in found if each.box.elements]


def _placed_runs(length: int, splits: Sequence[Split]) -> list[tuple[int, int, int]]:
    """First element in the tensor, first in the local one, and length, of the remaining runs of a dimension."""
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
    """The ranges that this rank gets of ``length`` consecutive elements."""
    run = -(-length // split.strides)
    for stride in range(split.strides):
        first, last = min(length, stride * run), min(length, (stride + 1) * run)
        piece = -(-(last - first) // split.ranks)
        yield min(last, first + split.position * piece), min(last, first + (split.position + 1) * piece)


def _cut(runs: Sequence[tuple[int, int]], begin: int, end: int) -> Iterable[tuple[int, int]]:
    """The elements from ``begin`` to ``end`` of concatenated runs."""
    at = 0
    for first, count in runs:
        low, high = max(begin, at), min(end, at + count)
        if low < high:
            yield first + low - at, high - low
        at += count


def _joined(runs: Iterable[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Runs, with adjacent ones joined."""
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
    """The indices of shards (path, box) in an order that is the same on all ranks that have them."""
    return sorted(range(len(shards)), key=shards.__getitem__)


def share_set(leaves: Sequence[LeafSpec] | Leaves, kappa: int, carried: IntArray, strategy: str = "deeppart") -> Plan:
    """The plan for the shards that one set of ranks has."""
    return partition(leaves, len(carried), kappa, strategy, carried)
