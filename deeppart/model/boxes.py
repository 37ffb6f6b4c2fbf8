"""Boxes: the part of a tensor that a shard of it has, as the first element and the lengths in every dimension. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Box(NamedTuple):
    """A rectangular part of a tensor.

    Attributes:
        offset: first element in each dimension; () of a tensor without dimensions.
        sizes: elements in each dimension.
    """

    offset: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Box:
        """All of a tensor."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def elements(self) -> int:
        """How many elements it has; 1 of a tensor without dimensions."""
        return math.prod(self.sizes)

    def common(self, other: Box) -> Box | None:
        """What two boxes of one tensor have in common; None if nothing."""
        if not self.meets(other):
            return None
        offset = tuple(map(max, self.offset, other.offset))
        ends = (
            min(a + m, b + n) for a, m, b, n in zip(self.offset, self.sizes, other.offset, other.sizes, strict=True)
        )
        return Box(offset, tuple(end - begin for begin, end in zip(offset, ends, strict=True)))

    def meets(self, other: Box) -> bool:
        """True if two boxes of one tensor have anything in common; asked of many, most of which do not."""
        for a, m, b, n in zip(self.offset, self.sizes, other.offset, other.sizes, strict=True):
            if a + m <= b or b + n <= a or not m or not n:
                return False
        return True

    def within(self, outer: Box) -> Box:
        """The same box, counted from where ``outer``, in which it lies, begins."""
        return Box(tuple(a - b for a, b in zip(self.offset, outer.offset, strict=True)), self.sizes)

    def slices(self) -> tuple[slice, ...]:
        """The index of it in an array of the whole."""
        return tuple(slice(begin, begin + length) for begin, length in zip(self.offset, self.sizes, strict=True))

    def fits(self, shape: tuple[int, ...]) -> bool:
        """True if it lies in a tensor of this shape."""
        if not len(self.offset) == len(self.sizes) == len(shape):
            return False
        for begin, length, whole in zip(self.offset, self.sizes, shape, strict=True):
            if begin < 0 or length < 0 or begin + length > whole:
                return False
        return True

    @staticmethod
    def of_range(shape: tuple[int, ...], start: int, stop: int) -> list[Box]:
        """The range ``[start, stop)`` of the elements of a tensor, in C order, as boxes."""
        if start >= stop:
            return []
        if not shape:
            return [Box((), ())]
        inner = math.prod(shape[1:])
        first, skip = divmod(start, inner)
        last, rest = divmod(stop, inner)
        found: list[Box] = []

        def in_row(row: int, begin: int, end: int) -> None:
            found.extend(Box((row, *box.offset), (1, *box.sizes)) for box in Box.of_range(shape[1:], begin, end))

        if skip:
            in_row(first, skip, min(stop - first * inner, inner))
            first += 1
        if last > first:
            found.append(Box((first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:])))
        if rest and last >= first:
            in_row(last, 0, rest)
        return found

    @staticmethod
    def fault_of_cover(boxes: Sequence[Box], shape: tuple[int, ...]) -> str:
        """What is wrong with the boxes of a tensor, for people; "" if they cover it and do not overlap.

        Shards lie in a grid nearly always: then looking at the cuts of each dimension is enough. Otherwise every box is
        compared with those that begin before it ends, along the dimension in which they begin at most places.
        """
        total = sum(box.elements for box in boxes)
        if total == math.prod(shape) and _is_grid(boxes, shape):
            return ""
        if clash := _first_clash(boxes):
            return f"{clash[0]} and {clash[1]} overlap"
        if total < math.prod(shape):
            return f"of {math.prod(shape)} elements, {total} are in a shard"
        return ""

    def __str__(self) -> str:
        ranges = (f"{begin}:{begin + length}" for begin, length in zip(self.offset, self.sizes, strict=True))
        return f"[{', '.join(ranges)}]"


def _is_grid(boxes: Sequence[Box], shape: tuple[int, ...]) -> bool:
    """True if the boxes are all cells of a grid whose cuts fill every dimension."""
    cells = 1
    for dimension, length in enumerate(shape):
        cuts = sorted({(box.offset[dimension], box.sizes[dimension]) for box in boxes})
        at = 0
        for begin, size in cuts:
            if begin != at:
                return False
            at += size
        if at != length:
            return False
        cells *= len(cuts)
    return cells == len(boxes) == len(set(boxes))


def _first_clash(boxes: Sequence[Box]) -> tuple[Box, Box] | None:
    """Two boxes that overlap; None if there are none."""
    reaching: list[Box] = []
    places = [len(set(offsets)) for offsets in zip(*(box.offset for box in boxes), strict=True)]
    along = places.index(max(places)) if places else 0
    for box in sorted(boxes, key=lambda box: (box.offset[along : along + 1], box)):
        if box.offset:
            reaching = [each for each in reaching if each.offset[along] + each.sizes[along] > box.offset[along]]
        for other in reaching:
            if other.common(box) is not None:
                return other, box
        reaching.append(box)
    return None
