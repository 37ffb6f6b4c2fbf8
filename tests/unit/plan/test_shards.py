"""Sharded tensors: boxes that cover a tensor, who holds them, where torch puts them, who saves them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor.placement_types import Shard, _StridedShard

from deeppart.model import Box
from deeppart.plan.shards import Placed, Split, in_order, place_boxes
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


BOXES = st.tuples(st.tuples(st.integers(0, 9)), st.tuples(st.integers(1, 9))).map(lambda each: Box(*each))


@given(st.lists(st.tuples(st.sampled_from("abc"), BOXES), unique=True, max_size=8), st.randoms())
def test_shards_come_into_one_order_whatever_number_they_have_on_a_rank(
    shards: list[tuple[str, Box]], random: object
) -> None:
    other = list(shards)
    random.shuffle(other)  # type: ignore[attr-defined]
    assert [shards[place] for place in in_order(shards)] == [other[place] for place in in_order(other)]
