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
from deeppart.partition import IntArray, Leaves, Plan
from deeppart.plan.shards import Split, added_cost, least_usual_kappa, place_boxes, share_set

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


class Aspect(NamedTuple):
    """What the kind of a leaf follows from, beside its layer: thousands of leaves have the same."""

    expert: int | None  # of the parameter; None outside experts
    divided: bool  # true if tensor parallelism divides it
    whole: bool  # true if no rank divides it
    optimizer: bool  # true if it is the optimizer's


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

    def boxes(self, number: int) -> list[list[Box]]:
        """The boxes of each of ``held.tensors`` on the ranks of one set."""
        shard, place = self.places[number].tolist()
        if self.kind is None:
            return [[Box.whole(tensor.shape)] for tensor in self.held.tensors]
        return [boxes_at(form_of(tensor), self.kind, shard, place) for tensor in self.held.tensors]


def aspect_of(tensor: Tensor) -> Aspect:
    """What its kind follows from."""
    parameter = tensor.parameter
    whole = tensor.plain or not tensor.shape
    return Aspect(parameter.expert, parameter.divided is not None, whole, tensor.optimizer)


def kind_of(aspect: Aspect, stage: int, grid: RankGrid, experts: int) -> Kind:
    """Which ranks of a layout divide the leaves of an aspect at a stage of the pipeline."""
    expert = None
    if aspect.expert is not None and grid.expert > 1:
        expert = aspect.expert * grid.expert // experts
    if aspect.whole:
        return Kind(stage, expert)
    among = grid.tensor if aspect.divided else 1
    if aspect.optimizer and grid.optimizer_sharded:
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


class ByAspect:
    """The leaves of a state by aspect: sorted once, for every number of ranks."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._tensors = tuple(tensors)
        self._layers = np.array([tensor.parameter.layer for tensor in self._tensors], dtype=np.int64)
        numbers, codes = dict[Aspect, list[int]](), dict[Form, int]()
        self._codes = np.empty(len(self._tensors), dtype=np.int64)
        for number, tensor in enumerate(self._tensors):
            numbers.setdefault(aspect_of(tensor), []).append(number)
            self._codes[number] = codes.setdefault(form_of(tensor), len(codes))
        self._forms = list(codes)
        self._numbers = {aspect: np.array(found, dtype=np.int64) for aspect, found in numbers.items()}

    def by_kind(self, grid: RankGrid, layers: int, experts: int) -> dict[Kind, dict[Aspect, IntArray]]:
        """Kind -> aspect -> the numbers of the leaves that a layout divides alike."""
        found: dict[Kind, dict[Aspect, IntArray]] = {}
        for aspect, numbers in self._numbers.items():
            stages = grid.stages_of(self._layers[numbers], layers)
            for stage in np.unique(stages).tolist():
                found.setdefault(kind_of(aspect, stage, grid, experts), {})[aspect] = numbers[stages == stage]
        return found

    def forms(self, numbers: Iterable[IntArray]) -> list[Form]:
        """The forms of some leaves, each once."""
        codes = np.unique(np.concatenate([self._codes[each] for each in numbers]))
        return [self._forms[code] for code in codes.tolist()]

    def leaves(self, numbers: Iterable[IntArray]) -> tuple[list[Tensor], list[Form]]:
        """Some leaves in the state's order, and the form of each."""
        ascending = np.sort(np.concatenate(list(numbers)))
        forms = [self._forms[code] for code in self._codes[ascending].tolist()]
        return [self._tensors[number] for number in ascending.tolist()], forms


def groups_of(
    state: ByAspect, grid: RankGrid, layers: int, experts: int, known: dict[object, Held]
) -> Iterator[Groups]:
    """All sets of ranks, and what they hold."""
    for kind, aspects in state.by_kind(grid, layers, experts).items():
        forms = state.forms(aspects.values())
        ranks = grid.ranks_of(kind.stage, kind.expert, kind.shards, divided=kind.tensor > 1)
        for sizes, places in classes(kind, forms).items():
            # With another number of ranks, other leaves may be of this kind: on one rank, all are.
            key = (grid.stages, kind, tuple(aspects), sizes)
            if key not in known:
                known[key] = _held(*state.leaves(aspects.values()), dict(zip(forms, sizes, strict=True)))
            yield Groups(known[key], ranks[places[:, 0], places[:, 1]], places, kind)


def own_groups(tensors: Sequence[Tensor], ranks: int, known: dict[object, Held]) -> Groups:
    """Leaves that every rank has for itself."""
    if "own" not in known:
        forms = [form_of(tensor) for tensor in tensors]
        known["own"] = _held(tensors, forms, {form: (form.shape,) for form in forms})
    return Groups(known["own"], np.arange(ranks, dtype=np.int64)[:, None], np.zeros((ranks, 2), dtype=np.int64), None)


def classes(kind: Kind, forms: Sequence[Form]) -> dict[tuple[_Sizes, ...], IntArray]:
    """The ranks by the sizes of what they hold: of each form the sizes of its boxes -> int64[n, 2], (shard, place).

    Ranks that hold nothing are left out.
    """
    found: dict[tuple[_Sizes, ...], list[IntArray]] = {}
    for first, end in pairwise(_ends(kind, forms)):
        for place in range(kind.tensor):
            sizes = tuple(tuple(box.sizes for box in boxes_at(form, kind, first, place)) for form in forms)
            if any(sizes):
                shards = np.arange(first, end, dtype=np.int64)
                found.setdefault(sizes, []).append(np.stack((shards, np.full_like(shards, place)), axis=1))
    return {sizes: _sorted(np.concatenate(places)) for sizes, places in found.items()}


def _sorted(places: IntArray) -> IntArray:
    return places[np.lexsort((places[:, 1], places[:, 0]))]


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
    return Held(Leaves.of(specs, 1), tuple(kept), tuple(pieces), by_dtype)


class PlannedSpan(NamedTuple):
    """Bytes of a box that a rank saves."""

    path: str  # of the leaf
    box: Box  # of the leaf, that the rank holds
    start: int  # first byte, in the box
    length: int  # number of bytes


@dataclass(frozen=True, slots=True, eq=False)
class Shares:
    """The share of each rank."""

    nbytes: IntArray  # int64[ranks]
    spans: IntArray  # int64[ranks]
    split: int  # how many leaves are in more than one share
    by_dtype: dict[str, float]  # share of all bytes that each dtype has; adds up to 1


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
