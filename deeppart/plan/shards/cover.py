"""Do the boxes of a tensor cover it, each element once?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from deeppart.model.boxes import Box


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
