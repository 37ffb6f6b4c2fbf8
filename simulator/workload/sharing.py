"""Who saves what: the library's rules for shares (``deeppart.plan.shards``), for all ranks at once.

Sets of ranks that hold boxes of equal sizes, and carry the same already, are cut alike: one plan serves all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import numpy as np

from deeppart.model.boxes import Box
from deeppart.partition import Plan
from deeppart.partition.cost import IntArray
from deeppart.plan.shards import added_cost, least_usual_kappa, share_set

from .holding import Groups


class PlannedSpan(NamedTuple):
    """Bytes of a box that a rank saves.

    Attributes:
        path: of the leaf.
        box: of the leaf, that the rank holds.
        start: first byte, in the box.
        length: number of bytes.
    """

    path: str
    box: Box
    start: int
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """The share of each rank.

    Attributes:
        nbytes: int64[ranks].
        spans: int64[ranks].
        split: how many leaves are in more than one share.
        by_dtype: share of all bytes that each dtype has; adds up to 1.
    """

    nbytes: IntArray
    spans: IntArray
    split: int
    by_dtype: dict[str, float]


class _Planned(NamedTuple):
    """One plan, and the sets of ranks that follow it."""

    groups: Groups
    numbers: IntArray
    plan: Plan


def share_out(groups: Sequence[Groups], ranks: int, strategy: str, kappa: int) -> Shares:
    """Count what each rank saves."""
    nbytes, spans = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    split, by_dtype = 0, dict[str, int]()
    for each in groups:
        for dtype, count in each.held.bytes_by_dtype.items():
            by_dtype[dtype] = by_dtype.get(dtype, 0) + count * len(each.ranks)
    for each, numbers, plan in _plans(groups, ranks, strategy, kappa):
        members = each.ranks[numbers]
        nbytes[members] += plan.bytes_per_rank()
        spans[members] += plan.spans_per_rank()
        split += plan.split_leaves() * len(members)
    total = sum(by_dtype.values())
    shares = {dtype: count / total for dtype, count in by_dtype.items()} if total else {}
    return Shares(nbytes, spans, split, shares)


def spans_of(groups: Sequence[Groups], ranks: int, strategy: str, kappa: int) -> list[list[PlannedSpan]]:
    """What each rank saves, span by span: for few ranks."""
    found: list[list[PlannedSpan]] = [[] for _ in range(ranks)]
    for each, numbers, plan in _plans(groups, ranks, strategy, kappa):
        shares = list(plan.shares())
        for number in numbers.tolist():
            boxes = each.boxes(number)
            for rank, share in zip(each.ranks[number].tolist(), shares, strict=True):
                for span in share.spans:
                    tensor, piece = each.held.pieces[span.leaf]
                    path = each.held.tensors[tensor].path
                    found[rank].append(PlannedSpan(path, boxes[tensor][piece], span.start, span.length))
    return [sorted(of_rank) for of_rank in found]


def kappa_of(groups: Iterable[Groups], ranks: int) -> int:
    """The cost of a span where none is given; what every rank has for itself does not count."""
    nbytes, leaves = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    for each in groups:
        if each.kind is not None:
            nbytes[each.ranks] += int(each.leaves.nbytes.sum())
            leaves[each.ranks] += len(each.leaves)
    return least_usual_kappa(map(tuple, np.unique(np.stack((nbytes, leaves), axis=1), axis=0).tolist()))


def _plans(groups: Sequence[Groups], ranks: int, strategy: str, kappa: int) -> Iterator[_Planned]:
    """Every plan, those of smaller sets first."""
    load = np.zeros(ranks, dtype=np.int64)
    for _, alike in groupby(groups, key=lambda each: each.ranks.shape[1]):
        before = load.copy()  # sets of one size do not know of each other
        for each in alike:
            for numbers, preload in _alike(before[each.ranks]):
                plan = share_set(each.leaves, kappa, preload, strategy)
                load[each.ranks[numbers]] += added_cost(plan)
                yield _Planned(each, numbers, plan)


def _alike(carried: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """The numbers of equal rows, and the row: most often all are equal, and then none need be sorted."""
    if (carried == carried[0]).all():
        yield np.arange(len(carried), dtype=np.int64), carried[0]
        return
    rows = np.ascontiguousarray(carried)
    as_bytes = rows.view(np.dtype((np.void, rows.strides[0]))).ravel()
    _, first, kind_of = np.unique(as_bytes, return_index=True, return_inverse=True)
    for kind, place in enumerate(first.tolist()):
        yield np.flatnonzero(kind_of.ravel() == kind), rows[place]
