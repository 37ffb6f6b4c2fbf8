"""Writes bytes of the raw stream into arrays, whatever their memory layout.

A saved piece is a box of a tensor, and so is the content of a live array: usually all of it. :class:`Scatter` writes
their intersection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from deeppart.errors import CorruptFileError, FreedMemoryError
from deeppart.model import Box
from deeppart.state.memory import HeldMemory, memmove
from deeppart.state.pieces import ANY_PART, LeafPiece, PartPieces, Source, WantedPieces
from deeppart.state.tensors import Array, Bytes, flat_bytes, lies_flat_on_host, rectangles
from deeppart.state.tree import assign

#: Copies of at least this length run without the interpreter lock.
_LONG_BYTES = 256 << 10
#: Dtypes by element size, for moving elements without computing with them; texts of numpy have any size.
_RAW: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


def _raw(itemsize: int) -> Any:
    return _RAW.get(itemsize) or np.dtype((np.void, itemsize))


class LiveBox(NamedTuple):
    """An array to fill, and the box of the tensor that it has."""

    array: Array
    box: Box

    @classmethod
    def whole(cls, array: Array) -> LiveBox:
        """For an array with the whole tensor."""
        return cls(array, Box.whole(tuple(array.shape)))


class Wanted(NamedTuple):
    """An array that needs bytes of a piece.

    Attributes:
        source: the piece.
        live: the array and its box.
        itemsize: bytes of an element.
        name: the tensor's name, for errors.
    """

    source: Source
    live: LiveBox
    itemsize: int
    name: str


def whole_leaves(arrays: Mapping[int, Array], part: int = ANY_PART) -> Iterator[Wanted]:
    """For arrays, given by leaf number, that need all of these leaves."""
    for leaf, array in arrays.items():
        live = LiveBox.whole(array)
        itemsize = array.element_size() if isinstance(array, torch.Tensor) else array.itemsize
        yield Wanted(Source(part, leaf, 0, live.box), live, itemsize, f"leaf {leaf}")


class Want(NamedTuple):
    """The bytes that one array of a :class:`Scatter` needs of a leaf.

    Attributes:
        array_number: number of the array.
        source, target: the boxes of the leaf and of the array.
        itemsize: bytes of an element.
        is_same: both boxes are the same, so that the array needs all bytes.
    """

    array_number: int
    source: Box
    target: Box
    itemsize: int
    is_same: bool

    def of(self, piece: LeafPiece) -> Iterator[Patch]:
        """The patches that the array needs of a piece of the leaf."""
        return patches(self.source, piece.start, piece.length, self.itemsize, self.target)

    def has_any_of(self, piece: LeafPiece) -> bool:
        """True if the array needs any byte of a piece."""
        return self.is_same or next(self.of(piece), None) is not None

    def nbytes_of(self, piece: LeafPiece) -> int:
        """How many bytes of a piece the array needs."""
        if self.is_same:
            return piece.length
        return sum(patch_bytes(patch, self.itemsize) for patch in self.of(piece))


class WantedChunk(NamedTuple):
    """A chunk with needed bytes.

    Attributes:
        number: number of the chunk in its part.
        pieces: the pieces in it.
        wants: the index of a piece in ``pieces``, and what an array needs of it.
    """

    number: int
    pieces: list[LeafPiece]
    wants: list[tuple[int, Want]]


class Scatter:
    """Writes the bytes of saved leaves into the arrays that need them.

    Attributes:
        wanted: the pieces with these bytes.
    """

    def __init__(self, wanted: Iterable[Wanted]) -> None:
        self._wants: dict[int, dict[tuple[int, int], list[Want]]] = {}
        self._items: list[Array] = []
        self._names: list[str] = []
        for (part, leaf, number, box), live, itemsize, name in wanted:
            want = Want(len(self._items), box, live.box, itemsize, box == live.box)
            self._wants.setdefault(part, {}).setdefault((leaf, number), []).append(want)
            self._items.append(live.array)
            self._names.append(name)
        self.wanted = WantedPieces(self._wants)
        self._memory = HeldMemory(self._items)
        #: For each array: whether it is contiguous in host memory; None until it is first written to.
        self._lies_flat: list[bool | None] = [None] * len(self._items)

    def chunks(self, part: int, pieces: PartPieces) -> Iterator[WantedChunk]:
        """The chunks of a part with needed bytes, ascending."""
        for chunk in pieces.chunks_of(self.wanted.of(part)):
            held = pieces.of(chunk)
            wants = [
                (index, want)
                for index, piece in enumerate(held)
                for want in self.wants_of(part, piece)
                if want.has_any_of(piece)
            ]
            if wants:
                yield WantedChunk(chunk, held, wants)

    def wants_of(self, part: int, piece: LeafPiece) -> Sequence[Want]:
        """The wants for a piece. Numbers of shared and per-rank pieces differ."""
        mine = self._wants.get(part, {}).get(piece[:2])
        return self._wants.get(ANY_PART, {}).get(piece[:2], ()) if mine is None else mine

    def direct(self, part: int, pieces: list[LeafPiece], nbytes: int) -> Bytes | None:
        """Memory to receive a chunk of one piece directly; None if it has to go through :meth:`write`."""
        wants = self.wants_of(part, pieces[0]) if len(pieces) == 1 and pieces[0].length == nbytes else ()
        if len(wants) != 1 or not wants[0].is_same:
            return None
        piece, array_number = pieces[0], wants[0].array_number
        self._check_memory([array_number])  # even if the array has no bytes
        if not self._flat(array_number):
            return None
        return flat_bytes(self._items[array_number])[piece.start : piece.start + piece.length]

    def bring(
        self,
        part: int,
        pieces: list[LeafPiece],
        nbytes: int,
        data: Callable[[], Bytes],
        read_into: Callable[[Bytes], object],
    ) -> Bytes:
        """Write a chunk's bytes into the arrays that need them, straight into one that needs the chunk alone; returns
        the bytes.
        """
        found = self.direct(part, pieces, nbytes)
        if found is None:
            self.write(part, pieces, found := data())
        else:
            read_into(found)
        return found

    def write(self, part: int, pieces: list[LeafPiece], data: Bytes) -> None:
        """Write a chunk's bytes into the arrays that need them."""
        wanted = [(piece, want) for piece in pieces for want in self.wants_of(part, piece)]
        self._check_memory([want.array_number for _, want in wanted])
        pointers, begin = self._memory.pointers, int(data.__array_interface__["data"][0])
        for piece, want in wanted:
            _, _, start, length, at = piece
            if not want.is_same or length >= _LONG_BYTES or not self._flat(want.array_number):
                self._fill(want, piece, data[at : at + length])
            elif self._has_room(want.array_number, start, length) and at + length <= data.nbytes:
                memmove(pointers[want.array_number] + start, begin + at, length)
            else:
                where = self._names[want.array_number]
                raise CorruptFileError("a part holds bytes beyond the end of a leaf", where=where)

    def _fill(self, want: Want, piece: LeafPiece, held: Bytes) -> None:
        """Write the bytes that one array needs of a piece, without using addresses."""
        if want.is_same and self._flat(want.array_number):
            np.copyto(flat_bytes(self._items[want.array_number])[piece.start : piece.start + len(held)], held)
        else:
            self._write_patches(want, piece, lambda patch: cut_patch(held, patch, want.itemsize))

    def fill_packed(self, want: Want, piece: LeafPiece, data: Bytes, at: int) -> int:
        """Write bytes, packed for one array's want of a piece and beginning at ``at``; returns where they end."""
        self._check_memory([want.array_number])
        if want.is_same:
            self._fill(want, piece, data[at : at + piece.length])
            return at + piece.length

        def elements(patch: Patch) -> npt.NDArray[Any]:
            nonlocal at
            start, at = at, at + patch_bytes(patch, want.itemsize)
            return packed_patch(data[start:at], patch, want.itemsize)

        self._write_patches(want, piece, elements)
        return at

    def _write_patches(self, want: Want, piece: LeafPiece, elements: Callable[[Patch], npt.NDArray[Any]]) -> None:
        array: Any = self._items[want.array_number]
        raw = None
        if self._flat(want.array_number):
            raw = flat_bytes(array).view(_raw(want.itemsize)).reshape(tuple(array.shape))
        for patch in want.of(piece):
            found = elements(patch)
            if raw is not None:
                raw[patch.target] = found
            elif isinstance(array, torch.Tensor):
                view = array.detach()[patch.target]
                # The bytes may be unaligned and read-only; a typed tensor needs aligned, writable ones.
                plain = np.array(found, order="C").reshape(-1).view(np.uint8)
                assign(view, torch.from_numpy(plain).view(array.dtype).view(view.shape))
            else:
                view = array[patch.target]
                view[...] = np.ascontiguousarray(found).view(array.dtype).reshape(view.shape)

    def _has_room(self, array_number: int, start: int, length: int) -> bool:
        """True if a range of a leaf's bytes is within its memory: needed because writes by address are not checked."""
        begins = self._memory.pointers[array_number] - self._memory.bases[array_number] + start
        return begins >= 0 and begins + length <= self._memory.lengths[array_number]

    def _check_memory(self, array_numbers: list[int]) -> None:
        if moved := self._memory.moved(array_numbers):
            raise _freed_error(self._names[moved[0]])

    def _flat(self, array_number: int) -> bool:
        """True if the array is contiguous in host memory."""
        known = self._lies_flat[array_number]
        if known is None:
            known = self._lies_flat[array_number] = lies_flat_on_host(self._items[array_number])
        return known


def _freed_error(where: str) -> FreedMemoryError:
    """The error for live memory that was freed or replaced during a restore."""
    return FreedMemoryError(
        "memory of the live state was freed or replaced while it was being restored",
        expected="a state that does not change until restore() returns",
        found="another address or length of a tensor's storage, or of an array",
        where=where,
        todo="parts of the live state already hold the checkpoint's bytes: restore again",
    )


# --- intersections of boxes -------------------------------------------------------------------------------------------


class Patch(NamedTuple):
    """A rectangle of elements in the intersection of two boxes.

    Attributes:
        at: position, in the given bytes, of the enclosing rectangle.
        shape: shape of the enclosing rectangle, whose elements are contiguous.
        source: the patch in the enclosing rectangle.
        target: the patch in the box to be filled.
    """

    at: int
    shape: tuple[int, ...]
    source: tuple[slice, ...]
    target: tuple[slice, ...]


def patches(source: Box, start: int, length: int, itemsize: int, target: Box) -> Iterator[Patch]:
    """The patches of bytes ``[start, start + length)`` of a box, in C order, in another box of the same tensor."""
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
    """The box of an index into an array, which may leave out the last dimensions."""
    rest = tuple(shape[len(index) :])
    offset = tuple(each.start for each in index) + (0,) * len(rest)
    return Box(offset, tuple(each.stop - each.start for each in index) + rest)


def cut_patch(data: Bytes, patch: Patch, itemsize: int) -> npt.NDArray[Any]:
    """The elements of a patch, as a view of the bytes for which it was made."""
    count = itemsize
    for each in patch.shape:
        count *= each
    rectangle: npt.NDArray[Any] = data[patch.at : patch.at + count].view(_raw(itemsize)).reshape(patch.shape)
    return rectangle[patch.source]


def packed_patch(data: Bytes, patch: Patch, itemsize: int) -> npt.NDArray[Any]:
    """The elements of a patch, from bytes with nothing else."""
    elements: npt.NDArray[Any] = data.view(_raw(itemsize))
    return elements.reshape([each.stop - each.start for each in patch.source])


def patch_bytes(patch: Patch, itemsize: int) -> int:
    """The number of bytes of a patch."""
    count = itemsize
    for each in patch.source:
        count *= each.stop - each.start
    return count
