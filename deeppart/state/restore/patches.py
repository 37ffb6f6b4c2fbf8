"""Bytes of one box of a tensor into another box of it: which rectangles of the one lie where in the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from deeppart.model.boxes import Box
from deeppart.state.tree.leaves import Array, Bytes, LeafType, flat_bytes, lies_flat_on_host, rectangles

#: Elements by their length alone: nothing is computed with them.
_RAW: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


class Patch(NamedTuple):
    """A rectangle of elements that one box has and another one wants.

    Attributes:
        at: first byte, among those given, of the rectangle in which it lies.
        shape: of that rectangle, whose elements follow one another.
        source: where it lies in that rectangle.
        target: where it goes in the box that wants it.
    """

    at: int
    shape: tuple[int, ...]
    source: tuple[slice, ...]
    target: tuple[slice, ...]


def patches(source: Box, start: int, length: int, itemsize: int, target: Box) -> Iterator[Patch]:
    """What bytes ``[start, start + length)`` of a box, in C order, have of another box of the same tensor."""
    wanted = source.common(target)
    if wanted is None:
        return
    inside, at = wanted.within(source), 0
    for index, count in rectangles(source.sizes, start // itemsize, (start + length) // itemsize):
        rectangle = _box_of(index, source.sizes)
        found = rectangle.common(inside)
        if found is not None:
            begins = tuple(a + b - c for a, b, c in zip(found.offset, source.offset, target.offset, strict=True))
            yield Patch(at, rectangle.sizes, found.within(rectangle).slices(), Box(begins, found.sizes).slices())
        at += count * itemsize


def _box_of(index: tuple[slice, ...], shape: tuple[int, ...]) -> Box:
    """A box of an array, from an index that may leave out the last dimensions."""
    rest = tuple(shape[len(index) :])
    offset = tuple(each.start for each in index) + (0,) * len(rest)
    return Box(offset, tuple(each.stop - each.start for each in index) + rest)


def cut_patch(data: Bytes, patch: Patch, itemsize: int) -> npt.NDArray[Any]:
    """The elements of a patch, as a view of the bytes that it was made for."""
    count = itemsize
    for each in patch.shape:
        count *= each
    rectangle: npt.NDArray[Any] = data[patch.at : patch.at + count].view(_RAW[itemsize]).reshape(patch.shape)
    return rectangle[patch.source]


def packed_patch(data: Bytes, patch: Patch, itemsize: int) -> npt.NDArray[Any]:
    """The elements of a patch, from bytes that hold nothing else."""
    elements: npt.NDArray[Any] = data.view(_RAW[itemsize])
    return elements.reshape([each.stop - each.start for each in patch.source])


def patch_bytes(patch: Patch, itemsize: int) -> int:
    """How many bytes a patch has."""
    count = itemsize
    for each in patch.source:
        count *= each.stop - each.start
    return count


class BoxWriter:
    """Writes elements into a live array that holds a box of a tensor."""

    def __init__(self, array: Array, kind: LeafType) -> None:
        self._array, self._itemsize = array, kind.itemsize
        self._raw: npt.NDArray[Any] | None = None
        if lies_flat_on_host(array):
            shape = tuple(array.shape)
            self._raw = flat_bytes(array).view(_RAW[self._itemsize]).reshape(shape)

    def write(self, patch: Patch, elements: npt.NDArray[Any]) -> None:
        """Put the elements of a patch where they belong."""
        if self._raw is not None:
            self._raw[patch.target] = elements
            return
        array: Any = self._array
        if isinstance(array, torch.Tensor):
            view = array.detach()[patch.target]
            # The bytes may lie at any address and be read-only; a typed tensor needs aligned ones that can be written.
            plain = np.array(elements, order="C").reshape(-1).view(np.uint8)
            view.copy_(torch.from_numpy(plain).view(array.dtype).view(view.shape))
        else:
            view = array[patch.target]
            view[...] = np.ascontiguousarray(elements).view(array.dtype).reshape(view.shape)
