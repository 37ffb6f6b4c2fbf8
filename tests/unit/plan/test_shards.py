"""Sharded tensors: boxes that cover a tensor, who holds them, where torch puts them, who saves them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor.placement_types import Shard, _StridedShard

from deeppart.model import Box, LeafSpec
from deeppart.partition import DEFAULT_KAPPA_BYTES, usual_kappa
from deeppart.plan.shards import (
    Claim,
    Placed,
    Split,
    Verdict,
    added_cost,
    in_order,
    judge,
    least_usual_kappa,
    place_boxes,
    share_set,
)
from tests.unit.plan.shard_partitions import partitions

Partition = tuple[tuple[int, ...], list[Box]]


def count(shape: tuple[int, ...], boxes: list[Box]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    times = np.zeros(shape, dtype=np.int64)
    for box in boxes:
        times[box.slices()] += 1
    return times


@given(partitions())
def test_whatever_is_cut_into_boxes_is_covered(drawn: Partition) -> None:
    shape, boxes = drawn
    assert Box.fault_of_cover(boxes, shape) == ""


@given(partitions(), st.data())
def test_one_less_is_a_gap(drawn: Partition, data: st.DataObject) -> None:
    shape, boxes = drawn
    lost = boxes.pop(data.draw(st.integers(0, len(boxes) - 1)))
    total = int(np.prod(shape))
    assert Box.fault_of_cover(boxes, shape) == f"of {total} elements, {total - lost.elements} are in a shard"


@given(partitions(), st.data())
def test_any_other_boxes_are_judged_as_elements_are_counted(drawn: Partition, data: st.DataObject) -> None:
    """One is moved, grows or shrinks; or is joined by one more. That may leave what covers the tensor."""
    shape, boxes = drawn
    offset = tuple(data.draw(st.integers(0, length - 1)) for length in shape)
    sizes = tuple(data.draw(st.integers(1, length - at)) for length, at in zip(shape, offset, strict=True))
    if data.draw(st.booleans()):
        boxes.pop()
    found = sorted({*boxes, Box(offset, sizes)})
    times, fault = count(shape, found), Box.fault_of_cover(found, shape)
    assert ("overlap" in fault) == bool((times > 1).any())
    assert (fault == "") == bool((times == 1).all())


def test_two_that_overlap_are_named() -> None:
    boxes = [Box((0, 0), (2, 4)), Box((2, 0), (2, 4)), Box((1, 3), (2, 1))]
    assert Box.fault_of_cover(boxes, (4, 4)) == "[0:2, 0:4] and [1:3, 3:4] overlap"


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0)])
def test_tensors_of_one_element_and_of_none(shape: tuple[int, ...]) -> None:
    whole = [Box.whole(shape)] if not shape else []
    assert Box.fault_of_cover(whole, shape) == ""
    if not shape:
        assert Box.fault_of_cover([], shape) == "of 1 elements, 0 are in a shard"


def test_many_rows_are_looked_at_once_each() -> None:
    """A grid, and a column of rows of which one is cut in two: no box is compared with all others."""
    rows = [Box((row, 0), (1, 8)) for row in range(20_000)]
    assert Box.fault_of_cover(rows, (20_000, 8)) == ""
    cut = [*rows[1:], Box((0, 0), (1, 5)), Box((0, 5), (1, 3))]
    assert Box.fault_of_cover(cut, (20_000, 8)) == ""
    across = [Box((column > 0, column), (2 - (column > 0), 1)) for column in range(20_000)]
    assert Box.fault_of_cover([*across, Box((0, 1), (1, 19_999))], (2, 20_000)) == ""


KIND, SHAPE = "float32[4, 2]", (4, 2)
TOP, BOTTOM = Box((0, 0), (2, 2)), Box((2, 0), (2, 2))


def claim(*boxes: Box, ties: tuple[str, ...] | None = None, kind: str = KIND) -> Claim:
    return Claim(kind, SHAPE, boxes, ("",) * len(boxes) if ties is None else ties)


def fault(claims: dict[int, Claim]) -> str:
    found = judge("model/w", claims)
    assert isinstance(found, str)
    return found


@given(partitions(), st.data())
def test_each_is_told_who_has_the_same(drawn: tuple[tuple[int, ...], list[Box]], data: st.DataObject) -> None:
    shape, boxes = drawn
    who = [data.draw(st.sets(st.integers(0, 6), min_size=1, max_size=4)) for _ in boxes]
    claims = {}
    for rank in range(7):
        mine = tuple(box for box, ranks in zip(boxes, who, strict=True) if rank in ranks)
        claims[rank] = Claim("k", shape, mine, ("",) * len(mine))
    found = judge("x", claims)
    assert isinstance(found, dict) and found.keys() == claims.keys()
    of_box = dict(zip(boxes, who, strict=True))
    for rank, verdict in found.items():
        assert verdict.holders == tuple(tuple(sorted(of_box[box])) for box in claims[rank].boxes)
        assert not any(verdict.tied) and len(verdict.tied) == len(verdict.holders)


def test_a_rank_that_has_nothing_of_it_is_told_nothing() -> None:
    found = judge("x", {3: claim(), 5: claim(BOTTOM, TOP)})
    assert found == {3: Verdict((), ()), 5: Verdict(((5,), (5,)), (False, False))}


def test_it_is_tied_if_it_is_so_on_all_that_have_it() -> None:
    here = claim(TOP, BOTTOM, ties=("head [0:2]", "head [2:4]"))
    there = claim(BOTTOM, ties=("head [2:4]",))
    alike = judge("x", {0: here, 1: there})
    assert isinstance(alike, dict) and alike[0].tied == (True, True) and alike[1].tied == (True,)
    for other in ("", "tail [2:4]"):
        apart = judge("x", {0: here, 1: claim(BOTTOM, ties=(other,))})
        assert isinstance(apart, dict) and apart[0].tied == (True, False) and apart[1].tied == (False,)


def test_what_is_wrong_is_said_with_who_has_it() -> None:
    assert fault({0: claim(TOP), 2: claim(BOTTOM, kind="float64[4, 2]")}) == (
        "model/w is float32[4, 2] on rank 0, float64[4, 2] on rank 2"
    )
    outside = fault({0: claim(TOP), 1: claim(Box((3, 0), (2, 2)))})
    assert outside == "model/w, float32[4, 2]: rank 1 has [3:5, 0:2] of it, which lies outside"
    assert fault({1: claim(TOP, TOP)}).endswith("rank 1 has one shard of it twice")
    gap = fault({0: claim(TOP), 1: claim(TOP), 4: claim()})
    assert gap == "model/w, float32[4, 2]: of 8 elements, 4 are in a shard ([0:2, 0:2] on rank 0)"
    overlap = fault({0: claim(TOP, BOTTOM), 1: claim(Box((1, 0), (2, 2)))})
    assert "overlap" in overlap and "[1:3, 0:2] on rank 1" in overlap
    assert fault({0: claim(), 1: claim()}).endswith("0 are in a shard (no rank has any)")


def test_of_many_shards_six_are_shown() -> None:
    rows = [Box((row, 0), (1, 1)) for row in range(9)]
    found = judge("x", {rank: Claim("k", (10, 1), (row,), ("",)) for rank, row in enumerate(rows)})
    assert isinstance(found, str) and found.count(" on rank ") == 6 and found.endswith(", ...)")


class Along(NamedTuple):
    """A dimension of a mesh: how many ranks, which dimension of the tensor it splits, and in how many runs."""

    ranks: int
    dimension: int
    strides: int


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Along]]:
    shape = tuple(draw(st.lists(st.integers(0, 13), min_size=1, max_size=3)))
    along = [
        Along(draw(st.integers(1, 4)), draw(st.integers(0, len(shape) - 1)), draw(st.sampled_from([1, 1, 2, 3, 4])))
        for _ in range(draw(st.integers(1, 3)))
    ]
    return shape, along


def places(along: Sequence[Along]) -> Iterator[tuple[int, ...]]:
    yield from itertools.product(*(range(each.ranks) for each in along))


def placed(shape: tuple[int, ...], along: Sequence[Along], place: tuple[int, ...]) -> list[Placed]:
    splits: list[list[Split]] = [[] for _ in shape]
    for each, at in zip(along, place, strict=True):
        splits[each.dimension].append(Split(each.ranks, at, each.strides))
    return place_boxes(shape, splits)


def split_by_torch(whole: torch.Tensor, along: Sequence[Along], place: tuple[int, ...]) -> torch.Tensor:
    for each, at in zip(along, place, strict=True):
        strided = _StridedShard(each.dimension, split_factor=each.strides)
        how = Shard(each.dimension) if each.strides == 1 else strided
        pieces, _ = how._split_tensor(whole, each.ranks, with_padding=False)
        whole = pieces[at]
    return whole


@settings(deadline=None)
@given(layouts())
def test_each_rank_has_what_torch_gives_it(layout: tuple[tuple[int, ...], list[Along]]) -> None:
    shape, along = layout
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    for place in places(along):
        expected = split_by_torch(whole, along, place)
        local = torch.full_like(expected, -1)
        for box, inside in placed(shape, along, place):
            assert box.sizes == inside.sizes and box.fits(shape) and inside.fits(tuple(local.shape))
            assert (local[inside.slices()] == -1).all(), "its boxes overlap in the local tensor"
            local[inside.slices()] = whole[box.slices()]
        assert torch.equal(local, expected)


@settings(deadline=None)
@given(layouts())
def test_all_ranks_together_have_each_element_once(layout: tuple[tuple[int, ...], list[Along]]) -> None:
    shape, along = layout
    times = torch.zeros(shape, dtype=torch.int64)
    for place in places(along):
        for box, _ in placed(shape, along, place):
            assert box.elements
            times[box.slices()] += 1
    assert (times == 1).all()


def test_neighbours_are_one_box() -> None:
    """Where the lengths divide, each rank of FSDP over tensor parallelism has one box, as torch says itself."""
    along = [Along(2, 0, 2), Along(2, 0, 1)]
    assert [[box.offset[0] for box, _ in placed((8,), along, place)] for place in places(along)] == [[0], [4], [2], [6]]


def test_what_does_not_divide_leaves_several_boxes_in_one_local_tensor() -> None:
    """Nine elements in two runs over four: the first has 0, 1 and 5, as in torch's own example."""
    found = placed((9,), [Along(4, 0, 2)], (0,))
    assert [(str(each.box), str(each.local)) for each in found] == [("[0:2]", "[0:2]"), ("[5:6]", "[2:3]")]


@pytest.mark.parametrize("shape", [(), (3, 0), (5, 2)])
def test_what_nothing_splits_is_whole_on_each_rank(shape: tuple[int, ...]) -> None:
    found = place_boxes(shape, [()] * len(shape))
    assert [each.box.sizes for each in found] == ([shape] if 0 not in shape else [])


def test_more_ranks_than_elements_leave_some_without() -> None:
    assert [len(placed((3,), [Along(5, 0, 1)], (at,))) for at in range(5)] == [1, 1, 1, 0, 0]


BOXES = st.tuples(st.tuples(st.integers(0, 9)), st.tuples(st.integers(1, 9))).map(lambda each: Box(*each))


@given(st.lists(st.tuples(st.sampled_from("abc"), BOXES), unique=True, max_size=8), st.randoms())
def test_shards_come_into_one_order_whatever_number_they_have_on_a_rank(
    shards: list[tuple[str, Box]], random: object
) -> None:
    other = list(shards)
    random.shuffle(other)  # type: ignore[attr-defined]
    assert [shards[place] for place in in_order(shards)] == [other[place] for place in in_order(other)]


def test_the_least_loaded_rank_of_a_set_gets_most() -> None:
    plan = share_set([LeafSpec("w", 1000)], 10, np.array([0, 600], dtype=np.int64))
    assert plan.bytes_per_rank().tolist() == [795, 205]
    assert added_cost(plan).tolist() == [805, 215]


@given(st.lists(st.lists(st.integers(1, 10**6), max_size=5), max_size=5))
def test_the_cost_of_a_span_is_that_of_the_rank_with_the_smallest_leaves(of_ranks: list[list[int]]) -> None:
    each = [usual_kappa(np.array(nbytes, dtype=np.int64)) for nbytes in of_ranks]
    assert least_usual_kappa((sum(nbytes), len(nbytes)) for nbytes in of_ranks) == min(
        each, default=DEFAULT_KAPPA_BYTES
    )
