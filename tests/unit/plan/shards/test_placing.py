"""The boxes that ranks have, against what torch itself splits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor.placement_types import Shard, _StridedShard

from deeppart.plan.shards import Placed, Split, place_boxes


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
