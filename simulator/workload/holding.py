"""Who holds what, and who saves it: the boxes of each leaf on each rank, and each rank's share of the bytes.

The boxes are those that the library computes from a DTensor's mesh and placements (``deeppart.plan.shards``), and the
shares follow its rules. Sets of ranks that hold boxes of equal sizes, and carry the same already, are cut alike: one
plan serves all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np

from deeppart.model import Box, LeafSpec
from deeppart.partition import DEFAULT_KAPPA_BYTES, IntArray, Leaves, Plan, usual_kappa_of
from deeppart.plan.shards import Split, place_boxes, share_set

from .layout import RankGrid
from .shapes import ITEM_BYTES, Tensor

#: Sizes of the boxes of one leaf on one rank.
_Sizes = tuple[tuple[int, ...], ...]


class Kind(NamedTuple):
    """Which ranks divide a leaf. Two leaves of one kind are divided among the same ranks."""

    stage: int  # of the pipeline
    expert: int | None = None  # which of the expert-parallel ranks have it; None for leaves outside experts
    tensor: int = 1  # tensor-parallel ranks that divide it; 1 for none
    shards: int = 1  # data-parallel ranks that divide it; 1 for none
    #: true if these divide its elements in a row (ZeRO); false if they divide its first dimension (FSDP)
    in_a_row: bool = False


class Form(NamedTuple):
    """What the boxes of a leaf follow from, beside its kind."""

    shape: tuple[int, ...]  # of the whole tensor
    divided: int  # the dimension that tensor parallelism divides


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """What each rank of a set holds alike, up to the places of boxes."""

    leaves: Leaves  # the boxes, for the partitioner
    tensors: tuple[Tensor, ...]  # the leaves of the state that they are of
    #: of each box its leaf's number in ``tensors``, and which of that leaf's boxes it is
    pieces: tuple[tuple[int, int], ...]
    bytes_by_dtype: dict[str, int]  # bytes of the boxes


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Sets of ranks that hold boxes of equal sizes: within a set the same bytes, from set to set others."""

    held: Held  # by each rank
    ranks: IntArray  # int64[sets, members]
    places: IntArray  # int64[sets, 2]; the place of each set among the shards, and among the tensor-parallel ranks
    kind: Kind | None  # of the leaves; None for those that every rank has for itself

    @property
    def leaves(self) -> Leaves:
        """What each rank holds."""
        return self.held.leaves


def kind_of(tensor: Tensor, grid: RankGrid, layers: int, experts: int) -> Kind:
    """Which ranks of a layout divide a leaf; what comes before the first layer or behind the last one is with it."""
    parameter, expert = tensor.parameter, None
    stage = min(max(parameter.layer, 0), layers - 1) * grid.stages // layers
    if parameter.expert is not None and grid.expert > 1:
        expert = parameter.expert * grid.expert // experts
    if tensor.plain or not tensor.shape:
        return Kind(stage, expert)
    among = 1 if parameter.divided is None else grid.tensor
    if tensor.optimizer and grid.optimizer_sharded:
        return Kind(stage, expert, among, grid.data // (1 if expert is None else grid.expert), True)
    return Kind(stage, expert, among, grid.shards)


def form_of(tensor: Tensor) -> Form:
    """What the boxes of a leaf follow from."""
    return Form(tensor.shape, tensor.parameter.divided or 0)


def boxes_at(form: Form, kind: Kind, shard: int, place: int) -> list[Box]:
    """The boxes of a leaf on one rank, in order, without empty ones.

    As ``fully_shard`` on top of ``parallelize_module`` of PyTorch divides: tensor parallelism cuts a dimension into
    pieces; FSDP then cuts the first one, of each piece that tensor parallelism would make of it, if it is the same.
    """
    if kind.in_a_row:
        form = Form((math.prod(form.shape),), 0)
    splits: list[list[Split]] = [[] for _ in form.shape]
    both = kind.tensor > 1 and kind.shards > 1 and form.divided == 0
    strides = kind.tensor if both and not kind.in_a_row else 1
    if kind.shards > 1:
        splits[0].append(Split(kind.shards, shard, strides))
    if kind.tensor > 1:
        tensor = Split(kind.tensor, place)
        splits[form.divided].insert(0 if kind.in_a_row else len(splits[form.divided]), tensor)
    return [each.box for each in place_boxes(form.shape, splits)]


def groups_of(
    tensors: Iterable[Tensor], grid: RankGrid, layers: int, experts: int, known: dict[object, Held]
) -> Iterator[Groups]:
    """All sets of ranks, and what they hold."""
    by_kind: dict[Kind, list[Tensor]] = {}
    for tensor in tensors:
        by_kind.setdefault(kind_of(tensor, grid, layers, experts), []).append(tensor)
    for kind, found in by_kind.items():
        forms = [form_of(tensor) for tensor in found]
        different = list(dict.fromkeys(forms))
        ranks = grid.ranks_of(kind.stage, kind.expert, kind.shards, divided=kind.tensor > 1)
        for sizes, places in classes(kind, different).items():
            # With another number of ranks, other leaves may be of this kind: on one rank, all are.
            key = (kind, sizes, tuple(map(id, found)))
            if key not in known:
                known[key] = _held(found, forms, dict(zip(different, sizes, strict=True)))
            yield Groups(known[key], ranks[places[:, 0], places[:, 1]], places, kind)


def per_rank_groups(tensors: Sequence[Tensor], ranks: int, known: dict[object, Held]) -> Groups:
    """Leaves that every rank has for itself."""
    if "per rank" not in known:
        forms = [form_of(tensor) for tensor in tensors]
        known["per rank"] = _held(tensors, forms, {form: (form.shape,) for form in forms})
    each = np.arange(ranks, dtype=np.int64)[:, None]
    return Groups(known["per rank"], each, np.zeros((ranks, 2), dtype=np.int64), None)


def classes(kind: Kind, forms: Sequence[Form]) -> dict[tuple[_Sizes, ...], IntArray]:
    """The ranks that hold something, by the sizes of their boxes of each form: -> int64[n, 2], (shard, place)."""
    found: dict[tuple[_Sizes, ...], list[IntArray]] = {}
    for first, end in pairwise(_ends(kind, forms)):
        for place in range(kind.tensor):
            sizes = tuple(tuple(box.sizes for box in boxes_at(form, kind, first, place)) for form in forms)
            if any(sizes):
                shards = np.arange(first, end, dtype=np.int64)
                found.setdefault(sizes, []).append(np.stack((shards, np.full_like(shards, place)), axis=1))
    together = ((sizes, np.concatenate(places)) for sizes, places in found.items())
    return {sizes: places[np.lexsort((places[:, 1], places[:, 0]))] for sizes, places in together}


def _ends(kind: Kind, forms: Sequence[Form]) -> list[int]:
    """Shards at which boxes of other sizes may begin: between two of these, all shards hold boxes of equal sizes."""
    ends = {0, kind.shards}
    for form in forms if kind.shards > 1 else ():
        length = math.prod(form.shape) if kind.in_a_row else form.shape[0]
        apart = kind.tensor if kind.in_a_row or form.divided == 0 else 1
        for run in _pieces(length, apart):
            full = run // -(-run // kind.shards)
            ends |= {min(full, kind.shards), min(full + 1, kind.shards)}
    return sorted(ends)


def _pieces(length: int, ranks: int) -> set[int]:
    """The lengths of the pieces that so many ranks cut a length into, without 0."""
    each = -(-length // ranks)
    return {each, length % each} - {0} if each else set()


def _held(tensors: Sequence[Tensor], forms: Sequence[Form], sizes: dict[Form, _Sizes]) -> Held:
    """Boxes of these sizes; they stand for those at any place."""
    specs: list[LeafSpec] = []
    pieces: list[tuple[int, int]] = []
    by_dtype: dict[str, int] = {}
    kept: list[Tensor] = []
    counts = {form: [math.prod(each) for each in of_form] for form, of_form in sizes.items()}
    for tensor, form in zip(tensors, forms, strict=True):
        item, of_boxes = ITEM_BYTES[tensor.dtype], counts[form]
        for number, elements in enumerate(of_boxes):
            specs.append(LeafSpec(tensor.path, elements * item, item))
            pieces.append((len(kept), number))
        if of_boxes:
            by_dtype[tensor.dtype] = by_dtype.get(tensor.dtype, 0) + sum(of_boxes) * item
            kept.append(tensor)
    return Held(Leaves.of(specs), tuple(kept), tuple(pieces), by_dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """The share of each rank."""

    nbytes: IntArray  # int64[ranks]
    spans: IntArray  # int64[ranks]
    split: int  # how many leaves are in more than one share
    by_dtype: dict[str, float]  # share of all bytes that each dtype has; adds up to 1


def share_out(groups: Sequence[Groups], ranks: int, strategy: str, kappa: int) -> Shares:
    """Count what each rank saves."""
    nbytes, spans = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    split, by_dtype = 0, dict[str, int]()
    for each in groups:
        for dtype, count in each.held.bytes_by_dtype.items():
            by_dtype[dtype] = by_dtype.get(dtype, 0) + count * len(each.ranks)
    for each, numbers, plan in plans(groups, ranks, strategy, kappa):
        members = each.ranks[numbers]
        nbytes[members] += plan.bytes_per_rank()
        spans[members] += plan.spans_per_rank()
        split += plan.split_leaves() * len(members)
    total = sum(by_dtype.values())
    shares = {dtype: count / total for dtype, count in by_dtype.items()} if total else {}
    return Shares(nbytes, spans, split, shares)


def kappa_of(groups: Iterable[Groups], ranks: int) -> int:
    """The cost of a span where none is given; what every rank has for itself does not count."""
    nbytes, leaves = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    for each in groups:
        if each.kind is not None:
            nbytes[each.ranks] += int(each.leaves.nbytes.sum())
            leaves[each.ranks] += len(each.leaves)
    held = np.unique(np.stack((nbytes, leaves), axis=1), axis=0).tolist()
    return min((usual_kappa_of(*each) for each in held), default=DEFAULT_KAPPA_BYTES)  # as of sharded tensors


def plans(groups: Sequence[Groups], ranks: int, strategy: str, kappa: int) -> Iterator[tuple[Groups, IntArray, Plan]]:
    """Every plan, those of smaller sets first, with the groups and the sets of ranks among them that follow it."""
    load = np.zeros(ranks, dtype=np.int64)
    for _, alike in groupby(groups, key=lambda each: each.ranks.shape[1]):
        before = load.copy()  # sets of one size do not know of each other
        for each in alike:
            for numbers, preload in _alike(before[each.ranks]):
                plan = share_set(each.leaves, kappa, preload, strategy)
                load[each.ranks[numbers]] += plan.bytes_per_rank() + plan.kappa * plan.spans_per_rank()
                yield each, numbers, plan


def _alike(carried: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """The numbers of equal rows, and the row: most often all are equal, and then none need be sorted."""
    if (carried == carried[0]).all():
        yield np.arange(len(carried), dtype=np.int64), carried[0]
        return
    rows, numbers = np.unique(carried, axis=0, return_inverse=True)
    for number, row in enumerate(rows):
        yield np.flatnonzero(numbers.ravel() == number), row
