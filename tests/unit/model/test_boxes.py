"""Boxes against the sets of elements that numpy finds at their indices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppart.model import Box, Division
from tests.unit.plan.shard_partitions import partitions

SHAPES = st.lists(st.integers(1, 5), max_size=3).map(tuple)


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    offset = tuple(draw(st.integers(0, length)) for length in shape)
    return Box(offset, tuple(draw(st.integers(0, length - at)) for length, at in zip(shape, offset, strict=True)))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[tuple[int, ...], Box, Box]:
    shape = draw(SHAPES)
    return shape, draw(boxes(shape)), draw(boxes(shape))


def elements(shape: tuple[int, ...], box: Box) -> set[int]:
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    return set(np.atleast_1d(numbers[box.slices()]).reshape(-1).tolist())


@given(pairs())
def test_what_two_boxes_have_in_common(drawn: tuple[tuple[int, ...], Box, Box]) -> None:
    shape, one, other = drawn
    both = elements(shape, one) & elements(shape, other)
    common = one.common(other)
    assert common == other.common(one)
    assert both == (set() if common is None else elements(shape, common))
    assert one.elements == len(elements(shape, one))


@given(pairs())
def test_within_another_it_is_the_same_elements(drawn: tuple[tuple[int, ...], Box, Box]) -> None:
    shape, outer, other = drawn
    common = outer.common(other)
    if common is None:
        return
    numbers = np.arange(int(np.prod(shape))).reshape(shape)
    inside = numbers[outer.slices()][common.within(outer).slices()]
    assert np.array_equal(inside, numbers[common.slices()])
    assert common.within(outer).fits(outer.sizes)


def test_the_whole_of_a_tensor() -> None:
    assert Box.whole((3, 4)) == Box((0, 0), (3, 4))
    assert Box.whole(()).elements == 1 and Box.whole((3, 0)).elements == 0
    assert Box.whole(()).common(Box.whole(())) == Box((), ())


@pytest.mark.parametrize(
    "box",
    [
        Box((2,), (2, 1)),
        Box((2,), (2,)),
        Box((2, 0, 0), (1, 1, 1)),
        Box((-1, 0), (1, 1)),
        Box((0, 0), (1, -1)),
        Box((2, 0), (2, 1)),
        Box((0, 4), (1, 1)),
        Box((0, 1 << 70), (1, 0)),
    ],
    ids=repr,
)
def test_what_lies_in_no_tensor_of_three_by_four(box: Box) -> None:
    assert not box.fits((3, 4))
    assert Box((2, 3), (1, 1)).fits((3, 4)) and Box((3, 4), (0, 0)).fits((3, 4))


@given(partitions(), st.data())
def test_the_boxes_that_meet_another(drawn: tuple[tuple[int, ...], list[Box]], data: st.DataObject) -> None:
    shape, found = drawn
    division, other = Division.of(found, shape), data.draw(boxes(shape))
    expected = [number for number in range(len(found)) if division.box(number).meets(other)]
    assert list(division.meeting(other)) == expected
    assert (division.number(other) is None) == (other not in found)
