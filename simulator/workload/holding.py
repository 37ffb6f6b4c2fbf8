"""The boxes of each leaf on each rank, and each rank's share of the bytes.

Boxes are computed as the library does from a DTensor's mesh and placements (``deeppart.plan.shards``), and shares
follow its rules. Sets of ranks with boxes of equal sizes and equal loads so far are divided in the same way, so they
share one plan.
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
    """Which ranks divide a leaf. Leaves of one kind are divided among the same ranks."""

    stage: int  # of the pipeline
    expert: int | None = None  # the expert-parallel ranks that hold it; None for leaves outside of experts
    tensor: int = 1  # number of tensor-parallel ranks that divide it; 1 for none
    shards: int = 1  # number of data-parallel ranks that divide it; 1 for none
    #: true if they divide its flattened elements (ZeRO); false if they divide its first dimension (FSDP)
    in_a_row: bool = False


class Form(NamedTuple):
    """The shape from which, with its kind, the boxes of a leaf follow."""

    shape: tuple[int, ...]  # of the whole tensor
    divided: int  # the dimension that tensor parallelism divides


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """What each rank of some sets holds; only the offsets of boxes differ between sets."""

    leaves: Leaves  # the boxes, for the partitioner
    tensors: tuple[Tensor, ...]  # the leaves of the state to which they belong
    #: for each box: the index of its leaf in ``tensors``, and its number among the boxes of this leaf
    pieces: tuple[tuple[int, int], ...]
    bytes_by_dtype: dict[str, int]  # bytes of the boxes


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Sets of ranks with boxes of equal sizes: the ranks of one set hold the same bytes, other sets hold others."""

    held: Held
    ranks: IntArray  # int64[sets, members]
    places: IntArray  # int64[sets, 2]; (index among the shards, index among the tensor-parallel ranks) of each set
    kind: Kind | None  # of the leaves; None for per-rank leaves

    @property
    def leaves(self) -> Leaves:
        """What each rank holds."""
        return self.held.leaves


def kind_of(tensor: Tensor, grid: RankGrid, layers: int, experts: int) -> Kind:
    """Which ranks of a layout divide a leaf; one before the first or after the last layer is in that layer's stage."""
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
    """The form of a leaf."""
    return Form(tensor.shape, tensor.parameter.divided or 0)


def boxes_at(form: Form, kind: Kind, shard: int, place: int) -> list[Box]:
    """The boxes of a leaf on one rank, in order, without empty ones.

    They are those of PyTorch's ``fully_shard`` applied after ``parallelize_module``: tensor parallelism divides one
    dimension; FSDP then divides the first dimension, and if this is the same one, each piece of it.
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
    """Yield all sets of ranks with what they hold."""
    by_kind: dict[Kind, list[Tensor]] = {}
    for tensor in tensors:
        by_kind.setdefault(kind_of(tensor, grid, layers, experts), []).append(tensor)
    for kind, found in by_kind.items():
        forms = [form_of(tensor) for tensor in found]
        different = list(dict.fromkeys(forms))
        ranks = grid.ranks_of(kind.stage, kind.expert, kind.shards, divided=kind.tensor > 1)
        for sizes, places in classes(kind, different).items():
            # The leaves are part of the key: with another number of ranks, other leaves may be of this kind.
            key = (kind, sizes, tuple(map(id, found)))
            if key not in known:
                known[key] = _held(found, forms, dict(zip(different, sizes, strict=True)))
            yield Groups(known[key], ranks[places[:, 0], places[:, 1]], places, kind)


def per_rank_groups(tensors: Sequence[Tensor], ranks: int, known: dict[object, Held]) -> Groups:
    """The groups of per-rank leaves: every rank is its own set."""
    if "per rank" not in known:
        forms = [form_of(tensor) for tensor in tensors]
        known["per rank"] = _held(tensors, forms, {form: (form.shape,) for form in forms})
    each = np.arange(ranks, dtype=np.int64)[:, None]
    return Groups(known["per rank"], each, np.zeros((ranks, 2), dtype=np.int64), None)


def classes(kind: Kind, forms: Sequence[Form]) -> dict[tuple[_Sizes, ...], IntArray]:
    """Sizes of the boxes of each form -> int64[n, 2], the (shard, place) of the ranks with such boxes, if any."""
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
    """Shards at which the sizes of boxes may change: between two of them, all shards have boxes of equal sizes."""
    ends = {0, kind.shards}
    for form in forms if kind.shards > 1 else ():
        length = math.prod(form.shape) if kind.in_a_row else form.shape[0]
        apart = kind.tensor if kind.in_a_row or form.divided == 0 else 1
        for run in _pieces(length, apart):
            full = run // -(-run // kind.shards)
            ends |= {min(full, kind.shards), min(full + 1, kind.shards)}
    return sorted(ends)


def _pieces(length: int, ranks: int) -> set[int]:
    """The lengths of the pieces into which ``ranks`` ranks divide a length, without 0."""
    each = -(-length // ranks)
    return {each, length % each} - {0} if each else set()


def _held(tensors: Sequence[Tensor], forms: Sequence[Form], sizes: dict[Form, _Sizes]) -> Held:
    """Boxes of these sizes, at any offset."""
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
    """The shares of all ranks."""

    nbytes: IntArray  # int64[ranks]
    spans: IntArray  # int64[ranks]
    split: int  # number of leaves in more than one share
    by_dtype: dict[str, float]  # dtype -> fraction of all bytes


def share_out(groups: Sequence[Groups], ranks: int, strategy: str, kappa: int) -> Shares:
    """Count the bytes and spans that each rank saves."""
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
    """The default cost of a span in bytes, from all leaves but per-rank ones."""
    nbytes, leaves = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    for each in groups:
        if each.kind is not None:
            nbytes[each.ranks] += int(each.leaves.nbytes.sum())
            leaves[each.ranks] += len(each.leaves)
    held = np.unique(np.stack((nbytes, leaves), axis=1), axis=0).tolist()
    return min((usual_kappa_of(*each) for each in held), default=DEFAULT_KAPPA_BYTES)  # as for sharded tensors


def plans(groups: Sequence[Groups], ranks: int, strategy: str, kappa: int) -> Iterator[tuple[Groups, IntArray, Plan]]:
    """Yield every plan with its groups and the sets of ranks that follow it; plans of smaller sets come first."""
    load = np.zeros(ranks, dtype=np.int64)
    for _, alike in groupby(groups, key=lambda each: each.ranks.shape[1]):
        before = load.copy()  # sets of equal size are planned independently of each other
        for each in alike:
            for numbers, preload in _alike(before[each.ranks]):
                plan = share_set(each.leaves, kappa, preload, strategy)
                load[each.ranks[numbers]] += plan.bytes_per_rank() + plan.kappa * plan.spans_per_rank()
                yield each, numbers, plan


def _alike(carried: IntArray) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield (indices of equal rows, the row). Usually all rows are equal, and nothing is sorted."""
    if (carried == carried[0]).all():
        yield np.arange(len(carried), dtype=np.int64), carried[0]
        return
    rows, numbers = np.unique(carried, axis=0, return_inverse=True)
    for number, row in enumerate(rows):
        yield np.flatnonzero(numbers.ravel() == number), row
