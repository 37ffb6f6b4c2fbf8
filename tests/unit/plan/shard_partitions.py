"""Tensors that are cut into boxes at random: in a grid, or into pieces that are cut again."""

from __future__ import annotations

from hypothesis import strategies as st

from deeppart.model import Box


@st.composite
def partitions(draw: st.DrawFn, most: int = 6) -> tuple[tuple[int, ...], list[Box]]:
    """A shape, and boxes that cover it once."""
    shape = tuple(draw(st.lists(st.integers(1, most), min_size=1, max_size=3)))
    boxes = [Box.whole(shape)]
    for _ in range(draw(st.integers(0, 6))):
        box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        boxes += halves(box, draw(st.integers(0, len(shape) - 1)), draw(st.integers(0, most)))
    return shape, draw(st.permutations(boxes))


def halves(box: Box, dimension: int, at: int) -> list[Box]:
    """Two parts of a box; or all of it, where there is nothing to cut."""
    length = box.sizes[dimension]
    if length < 2:
        return [box]
    first = 1 + at % (length - 1)
    low, high = list(box.sizes), list(box.sizes)
    low[dimension], high[dimension] = first, length - first
    offset = list(box.offset)
    offset[dimension] += first
    return [Box(box.offset, tuple(low)), Box(tuple(offset), tuple(high))]
