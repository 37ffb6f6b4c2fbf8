"""Boxes that cover a tensor once, and what is said of others; against a count of every element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppart.model.boxes import Box
from deeppart.plan.shards import fault_of_cover
from tests.unit.plan.shards.partitions import partitions

Partition = tuple[tuple[int, ...], list[Box]]


def count(shape: tuple[int, ...], boxes: list[Box]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    times = np.zeros(shape, dtype=np.int64)
    for box in boxes:
        times[box.slices()] += 1
    return times


@given(partitions())
def test_whatever_is_cut_into_boxes_is_covered(drawn: Partition) -> None:
    shape, boxes = drawn
    assert fault_of_cover(boxes, shape) == ""


@given(partitions(), st.data())
def test_one_less_is_a_gap(drawn: Partition, data: st.DataObject) -> None:
    shape, boxes = drawn
    lost = boxes.pop(data.draw(st.integers(0, len(boxes) - 1)))
    total = int(np.prod(shape))
    assert fault_of_cover(boxes, shape) == f"of {total} elements, {total - lost.elements} are in a shard"


@given(partitions(), st.data())
def test_any_other_boxes_are_judged_as_elements_are_counted(drawn: Partition, data: st.DataObject) -> None:
    """One is moved, grows or shrinks; or is joined by one more. That may leave what covers the tensor."""
    shape, boxes = drawn
    offset = tuple(data.draw(st.integers(0, length - 1)) for length in shape)
    sizes = tuple(data.draw(st.integers(1, length - at)) for length, at in zip(shape, offset, strict=True))
    if data.draw(st.booleans()):
        boxes.pop()
    found = sorted({*boxes, Box(offset, sizes)})
    times, fault = count(shape, found), fault_of_cover(found, shape)
    assert ("overlap" in fault) == bool((times > 1).any())
    assert (fault == "") == bool((times == 1).all())


def test_two_that_overlap_are_named() -> None:
    boxes = [Box((0, 0), (2, 4)), Box((2, 0), (2, 4)), Box((1, 3), (2, 1))]
    assert fault_of_cover(boxes, (4, 4)) == "[0:2, 0:4] and [1:3, 3:4] overlap"


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0)])
def test_tensors_of_one_element_and_of_none(shape: tuple[int, ...]) -> None:
    whole = [Box.whole(shape)] if not shape else []
    assert fault_of_cover(whole, shape) == ""
    if not shape:
        assert fault_of_cover([], shape) == "of 1 elements, 0 are in a shard"


def test_many_rows_are_looked_at_once_each() -> None:
    """A grid, and a column of rows of which one is cut in two: no box is compared with all others."""
    rows = [Box((row, 0), (1, 8)) for row in range(20_000)]
    assert fault_of_cover(rows, (20_000, 8)) == ""
    cut = [*rows[1:], Box((0, 0), (1, 5)), Box((0, 5), (1, 3))]
    assert fault_of_cover(cut, (20_000, 8)) == ""
    across = [Box((column > 0, column), (2 - (column > 0), 1)) for column in range(20_000)]
    assert fault_of_cover([*across, Box((0, 1), (1, 19_999))], (2, 20_000)) == ""
