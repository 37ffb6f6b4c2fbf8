"""Which elements of a tensor a rank has, if the tensor is split over the dimensions of a mesh one after another.

As ``torch.distributed.tensor`` splits: each mesh dimension takes what the ones before it have left on this rank, cuts
it into ``ranks`` pieces of equal length, rounded up, and gives rank ``place`` its piece; the last pieces are shorter,
or empty. A strided split (``_StridedShard``: FSDP over tensor parallelism) first cuts into ``strides`` such runs, takes
the rank's piece of each, and puts these one after the other. Where the lengths do not divide, these pieces are no
neighbours in the tensor: a rank then has several boxes of it, though its local tensor is one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from deeppart.model.boxes import Box


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
    """The boxes of a tensor that one rank has, without empty ones."""
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
