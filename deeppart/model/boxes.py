"""Boxes: rectangular parts of a tensor, such as shards; and divisions: all boxes of a tensor, numbered. Pure."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Box(NamedTuple):
    """A rectangular part of a tensor.

    Attributes:
        offset: first element in each dimension; () for a 0-dim tensor.
        sizes: elements in each dimension.
    """

    offset: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Box:
        """The box of a whole tensor."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def elements(self) -> int:
        """The number of its elements; 1 for a 0-dim tensor."""
        return math.prod(self.sizes)

    def common(self, other: Box) -> Box | None:
        """The intersection of two boxes of one tensor; None if it is empty."""
        if not self.meets(other):
            return None
        offset = tuple(map(max, self.offset, other.offset))
        ends = (
            min(a + m, b + n) for a, m, b, n in zip(self.offset, self.sizes, other.offset, other.sizes, strict=True)
        )
        return Box(offset, tuple(end - begin for begin, end in zip(offset, ends, strict=True)))

    def meets(self, other: Box) -> bool:
        """True if two boxes of one tensor overlap; optimised for many boxes that do not."""
        for a, m, b, n in zip(self.offset, self.sizes, other.offset, other.sizes, strict=True):
            if a + m <= b or b + n <= a or not m or not n:
                return False
        return True

    def within(self, outer: Box) -> Box:
        """The same box relative to ``outer``, which contains it."""
        return Box(tuple(a - b for a, b in zip(self.offset, outer.offset, strict=True)), self.sizes)

    def slices(self) -> tuple[slice, ...]:
        """Its index into an array of the whole tensor."""
        return tuple(slice(begin, begin + length) for begin, length in zip(self.offset, self.sizes, strict=True))

    def fits(self, shape: tuple[int, ...]) -> bool:
        """True if it is within a tensor of this shape."""
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
    def fault_of_cover(boxes: Collection[Box], shape: tuple[int, ...]) -> str:
        """The fault of the boxes of a tensor as text; "" if they cover it and do not overlap."""
        return Division.of(boxes, shape).fault()

    def __str__(self) -> str:
        ranges = (f"{begin}:{begin + length}" for begin, length in zip(self.offset, self.sizes, strict=True))
        return f"[{', '.join(ranges)}]"


#: Beginnings of the intervals of a dimension, ascending from 0: a range if all but the last have the same length.
Cuts = range | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Division:
    """The division of a tensor into boxes, which are numbered from 0; none of them is empty.

    Attributes:
        shape: shape of the tensor.
        cuts: for each dimension the beginnings of its intervals, if the boxes are the cells of a grid, numbered in C
            order; otherwise None.
        listed: the boxes in ascending order, if they are not a grid.
    """

    shape: tuple[int, ...]
    cuts: tuple[Cuts, ...] | None
    listed: tuple[Box, ...] = ()

    @classmethod
    def of(cls, boxes: Collection[Box], shape: tuple[int, ...]) -> Division:
        """The division into these boxes, all within the tensor; :meth:`fault` says whether they cover it."""
        cuts = cuts_of(boxes, shape)
        return cls(shape, cuts) if cuts is not None else cls(shape, None, tuple(sorted(boxes)))

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Division:
        """A tensor in one box; in none if it is empty."""
        return cls(shape, tuple(_cuts([0] if length else [], length) for length in shape))

    def __len__(self) -> int:
        """The number of boxes."""
        return len(self.listed) if self.cuts is None else math.prod(map(len, self.cuts))

    def box(self, number: int) -> Box:
        """The box with a number."""
        if self.cuts is None:
            return self.listed[number]
        offset, sizes = [], []
        for cuts, length in zip(reversed(self.cuts), reversed(self.shape), strict=True):
            number, place = divmod(number, len(cuts))
            offset.append(cuts[place])
            sizes.append(_end(cuts, place, length) - cuts[place])
        return Box(tuple(reversed(offset)), tuple(reversed(sizes)))

    def number(self, box: Box) -> int | None:
        """The number of a box; None if it is not one of them."""
        if self.cuts is None:
            place = bisect_left(self.listed, box)
            return place if place < len(self.listed) and self.listed[place] == box else None
        number = 0
        for cuts, length, begin, size in zip(self.cuts, self.shape, *box, strict=True):
            place = bisect_left(cuts, begin)
            if place == len(cuts) or cuts[place] != begin or _end(cuts, place, length) != begin + size:
                return None
            number = number * len(cuts) + place
        return number

    def meeting(self, box: Box) -> Iterator[int]:
        """The numbers of the boxes that overlap a box, ascending."""
        if self.cuts is None:
            yield from (number for number, each in enumerate(self.listed) if each.meets(box))
            return
        places = []
        for cuts, begin, size in zip(self.cuts, *box, strict=True):
            places.append(range(bisect_right(cuts, begin) - 1, bisect_left(cuts, begin + size)) if size else range(0))
        for found in itertools.product(*places):
            number = 0
            for cuts, place in zip(self.cuts, found, strict=True):
                number = number * len(cuts) + place
            yield number

    def fault(self) -> str:
        """The fault of the boxes as text; "" if they cover the tensor and do not overlap.

        A grid has none. Otherwise every box is compared with those that begin before it ends, along the dimension
        with most distinct beginnings.
        """
        if self.cuts is not None:
            return ""
        if clash := _first_clash(self.listed):
            return f"{clash[0]} and {clash[1]} overlap"
        total = sum(box.elements for box in self.listed)
        if total < math.prod(self.shape):
            return f"of {math.prod(self.shape)} elements, {total} are in a shard"
        return ""


def cuts_of(boxes: Collection[Box], shape: tuple[int, ...]) -> tuple[Cuts, ...] | None:
    """The cuts of the grid whose cells these boxes are; None if they are not a grid, or do not cover the tensor."""
    cuts = tuple(_cuts(sorted({box.offset[at] for box in boxes}), length) for at, length in enumerate(shape))
    if not math.prod(shape):
        return None if boxes else Division.whole(shape).cuts
    if any(not each or each[0] for each in cuts):
        return None
    grid = Division(shape, cuts)
    if len(grid) != len(boxes) or len(set(boxes)) != len(boxes):
        return None
    return cuts if all(grid.number(box) is not None for box in boxes) else None


def _cuts(begins: Sequence[int], length: int) -> Cuts:
    """Cuts in their canonical form."""
    step = begins[1] if len(begins) > 1 else max(1, length)
    regular = range(0, length, step) if step > 0 else range(0)
    return regular if len(regular) == len(begins) and all(map(int.__eq__, regular, begins)) else tuple(begins)


def _end(cuts: Cuts, place: int, length: int) -> int:
    """The end of an interval."""
    return cuts[place + 1] if place + 1 < len(cuts) else length


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
