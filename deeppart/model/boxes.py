"""Boxes: the part of a tensor that a shard of it has, as the first element and the lengths in every dimension. Pure."""

from __future__ import annotations

import math
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

    def __str__(self) -> str:
        ranges = (f"{begin}:{begin + length}" for begin, length in zip(self.offset, self.sizes, strict=True))
        return f"[{', '.join(ranges)}]"
