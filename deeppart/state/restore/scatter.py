"""Bytes of the raw stream back into arrays, wherever and however those lie in memory.

:class:`Scatter` fills leaves; :class:`BoxScatter` whole tensors, and boxes of them, from the shards that ranks saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from deeppart.errors import CorruptFileError, FreedMemoryError
from deeppart.model import Box
from deeppart.part import OWN_TABLE, SPAN_DTYPE
from deeppart.state.document.structure import Structure
from deeppart.state.document.whole import ShardSource, WholeTensor
from deeppart.state.memory.copies import memmove
from deeppart.state.memory.held import HeldMemory
from deeppart.state.tree.leaves import Array, Bytes, LeafType, flat_bytes, lies_flat_on_host, rectangles

#: Pieces from this length on are copied while other threads run.
_LONG_BYTES = 256 << 10
#: Elements by their length alone: nothing is computed with them.
_RAW: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


class LeafPiece(NamedTuple):
    """Bytes ``[at, at + length)`` of a chunk are bytes ``[start, start + length)`` of a leaf."""

    leaf: int
    start: int
    length: int
    at: int


def chunk_pieces(spans: npt.NDArray[np.void], raw_starts: npt.NDArray[np.uint64]) -> list[list[LeafPiece]]:
    """The pieces of leaves in each chunk of a part."""
    pieces: list[list[LeafPiece]] = [[] for _ in range(len(raw_starts) - 1)]
    bounds = raw_starts.tolist()
    chunk = 0
    columns = (spans[name].tolist() for name in ("leaf", "start", "length", "raw_offset"))
    for leaf, start, length, offset in zip(*columns, strict=True):
        done = 0
        while done < length:
            at = offset + done
            while bounds[chunk + 1] <= at:
                chunk += 1
            count = min(length - done, bounds[chunk + 1] - at)
            pieces[chunk].append(LeafPiece(leaf, start + done, count, at - bounds[chunk]))
            done += count
    return pieces


class Scatter:
    """Writes bytes into arrays."""

    def __init__(self, arrays: dict[int, Array]) -> None:
        self._arrays = arrays
        self._items = list(arrays.values())
        self._memory = HeldMemory(self._items)
        self._places = {leaf: place for place, leaf in enumerate(arrays)}
        #: Of each place: whether the leaf lies in order in host memory; None where nobody has asked.
        self._lies_flat: list[bool | None] = [None] * len(arrays)

    def wants(self, leaf: int) -> bool:
        """True if the leaf is to be filled."""
        return leaf in self._arrays

    def direct(self, pieces: list[LeafPiece]) -> Bytes | None:
        """Memory into which a chunk of one piece may be received as it is; None if it must go through :meth:`write`."""
        if len(pieces) != 1 or not self.wants(pieces[0].leaf):
            return None
        piece = pieces[0]
        place = self._places[piece.leaf]
        self._check_places([place])  # first: there may be no bytes to take
        if not self._flat(place):
            return None
        return flat_bytes(self._arrays[piece.leaf])[piece.start : piece.start + piece.length]

    def write(self, pieces: list[LeafPiece], data: Bytes) -> None:
        """Put a chunk's bytes where they belong."""
        wanted = [piece for piece in pieces if piece.leaf in self._places]
        places = list(map(self._places.__getitem__, (piece.leaf for piece in wanted)))
        self._check_places(places)
        pointers, source = self._memory.pointers, int(data.__array_interface__["data"][0])
        for (leaf, start, length, at), place in zip(wanted, places, strict=True):
            if length >= _LONG_BYTES or not self._flat(place):
                self._write_alone(leaf, start, data[at : at + length])
            elif self._has_room(place, start, length) and at + length <= data.nbytes:
                memmove(pointers[place] + start, source + at, length)
            else:
                raise CorruptFileError("a part holds bytes beyond the end of a leaf", where=f"leaf {leaf}")

    def _write_alone(self, leaf: int, start: int, source: Bytes) -> None:
        array = self._arrays[leaf]
        if self._flat(self._places[leaf]):
            np.copyto(flat_bytes(array)[start : start + len(source)], source)
        else:
            _write_elements(array, start, source)

    def _has_room(self, place: int, start: int, length: int) -> bool:
        """True if some bytes of a leaf are in its memory: by address, nothing else would notice."""
        begins = self._memory.pointers[place] - self._memory.bases[place] + start
        return begins >= 0 and begins + length <= self._memory.lengths[place]

    def _check_places(self, places: list[int]) -> None:
        if moved := self._memory.moved(places):
            raise freed_error(f"leaf {list(self._arrays)[moved[0]]}")

    def _flat(self, place: int) -> bool:
        """True if the leaf lies in host memory as bytes in order."""
        known = self._lies_flat[place]
        if known is None:
            known = self._lies_flat[place] = lies_flat_on_host(self._items[place])
        return known


def freed_error(where: str) -> FreedMemoryError:
    """Memory of the live state was freed or replaced while it was being restored."""
    return FreedMemoryError(
        "memory of the live state was freed or replaced while it was being restored",
        expected="a state that nobody else changes until restore() returns",
        found="another address or length of a tensor's storage, or of an array",
        where=where,
        todo="parts of the live state already hold the checkpoint's bytes: restore again",
    )


def _write_elements(array: Any, start: int, source: Bytes) -> None:
    itemsize = array.element_size() if isinstance(array, torch.Tensor) else array.itemsize
    first, count = start // itemsize, len(source) // itemsize
    at = 0
    for index, elements in rectangles(tuple(array.shape), first, first + count):
        piece = source[at * itemsize : (at + elements) * itemsize]
        at += elements
        if isinstance(array, torch.Tensor):
            view = array.detach()[index]
            # The bytes may lie at any address; a typed tensor needs an aligned one.
            view.copy_(torch.from_numpy(piece.copy()).view(array.dtype).view(view.shape))
        else:
            view = array[index]
            view[...] = piece.view(array.dtype).reshape(view.shape)


def check_places(
    structure: Structure,
    own_types: Mapping[int, LeafType],
    spans: npt.NDArray[np.void],
    raw_starts: npt.NDArray[np.uint64],
    per_rank: npt.NDArray[np.bool_],
    where: str,
) -> None:
    """Check that a part's spans are of leaves that can stand there: before any of its bytes is put anywhere.

    A span of the rank's own table is of a leaf that each rank saved for itself, and lies in chunks that are marked as
    such; a span of the shared table is not, and does not. An alias has no spans. No element is cut in two, neither by a
    span nor by the end of a chunk.
    """
    leaf, begins = spans["leaf"].astype(np.int64), spans["raw_offset"]
    if len(leaf) and int(leaf.max()) >= len(structure.types):
        raise CorruptFileError("a part holds a leaf that the structure document lacks", where=where)
    own = spans["table"] == OWN_TABLE
    aliases = np.zeros(len(structure.types), dtype=np.bool_)
    aliases[list(structure.aliases)] = True
    used, place = np.unique(leaf, return_inverse=True)  # a part holds few leaves of many
    kinds = [own_types.get(number, structure.types[number]) for number in used.tolist()]
    itemsizes = np.array([kind.itemsize for kind in kinds], dtype=np.uint64)[place]
    first = np.searchsorted(raw_starts, begins, side="right") - 1
    stop = np.searchsorted(raw_starts, begins + spans["length"], side="left")
    marked = np.concatenate([[0], np.cumsum(per_rank, dtype=np.int64)])
    borders = raw_starts[1:-1]
    holding = np.searchsorted(begins, borders, side="right") - 1
    cut = np.zeros(len(spans), dtype=np.bool_)
    cut[holding[(borders - begins[holding]) % itemsizes[holding] != 0]] = True
    for bad, why in (
        (structure.per_rank[leaf] != own, "in the table of the other kind"),
        (aliases[leaf], "that shares its memory with another, which has the bytes"),
        (marked[stop] - marked[first] != np.where(own, stop - first, 0), "in a chunk that is marked otherwise"),
        ((spans["start"] % itemsizes != 0) | (spans["length"] % itemsizes != 0) | cut, "in pieces of elements"),
    ):
        if bad.any():
            row = int(bad.argmax())
            raise CorruptFileError(
                f"a part holds a leaf {why}",
                found=f"leaf {int(leaf[row])}, {kinds[place[row]]}",
                where=where,
                todo="the checkpoint was not written by a sound library: restore an earlier step",
            )


def check_cover(types: list[LeafType], wanted: set[int], spans: list[npt.NDArray[np.void]], where: str) -> None:
    """Check that the parts together hold every byte of every wanted leaf exactly once."""
    table = (
        np.concatenate(spans) if spans else np.zeros(0, dtype=[("leaf", "<u4"), ("start", "<u8"), ("length", "<u8")])
    )
    if len(table) and int(table["leaf"].max()) >= len(types):
        raise CorruptFileError("a part holds a leaf that the structure document lacks", where=where)
    sizes = np.array([kind.nbytes for kind in types], dtype=np.uint64)
    table = table[np.lexsort((table["start"], table["leaf"]))]
    ends = table["start"] + table["length"]
    same = table["leaf"][1:] == table["leaf"][:-1]
    expected = np.zeros(len(table), dtype=np.uint64)
    expected[1:][same] = ends[:-1][same]
    covered = np.zeros(len(types), dtype=np.uint64)
    np.maximum.at(covered, table["leaf"].astype(np.int64), ends)
    bad = set(table["leaf"][table["start"] != expected].tolist())
    bad |= set(np.flatnonzero(covered != sizes).tolist())
    if bad & wanted:
        leaf = min(bad & wanted)
        raise CorruptFileError(
            "the parts do not hold every byte of a leaf exactly once",
            expected=f"bytes 0 to {types[leaf].nbytes} of leaf {leaf}, {types[leaf]}",
            where=where,
            todo="the checkpoint was not written by a sound library: restore an earlier step",
        )


# --- whole tensors and boxes of them ----------------------------------------------------------------------------------


class LiveBox(NamedTuple):
    """An array to fill, and the box of a tensor that it holds."""

    array: Array
    box: Box

    @classmethod
    def whole(cls, array: Array) -> LiveBox:
        """An array that is all of the tensor."""
        return cls(array, Box.whole(tuple(array.shape)))


class Wanted(NamedTuple):
    """What an array wants of a leaf of a part.

    Attributes:
        source: the leaf, and the box of the tensor that it is.
        live: the array.
        place: its number among the arrays of a :class:`BoxScatter`.
        itemsize: bytes of an element.
    """

    source: ShardSource
    live: LiveBox
    place: int
    itemsize: int

    def of(self, piece: LeafPiece) -> Iterator[Patch]:
        """The patches that it wants of a piece of the leaf."""
        return patches(self.source.box, piece.start, piece.length, self.itemsize, self.live.box)

    def has_any_of(self, piece: LeafPiece) -> bool:
        """True if it wants anything of a piece."""
        return next(self.of(piece), None) is not None

    def nbytes_of(self, piece: LeafPiece) -> int:
        """How many bytes it wants of a piece."""
        return sum(patch_bytes(patch, self.itemsize) for patch in self.of(piece))


class BoxScatter:
    """Writes what parts hold of tensors into the boxes that are wanted of them."""

    def __init__(self, wanted: Mapping[int, tuple[WholeTensor, Sequence[LiveBox]]]) -> None:
        self._wants: dict[int, dict[int, list[Wanted]]] = {}
        self._writers: list[BoxWriter] = []
        self._names: list[str] = []
        arrays: list[Array] = []
        for tensor, live in wanted.values():
            for each in live:
                if not each.box.elements:
                    continue
                for source in tensor.sources:
                    if source.box.meets(each.box):
                        want = Wanted(source, each, len(arrays), tensor.kind.itemsize)
                        self._wants.setdefault(source.part, {}).setdefault(source.leaf, []).append(want)
                arrays.append(each.array)
                self._writers.append(BoxWriter(each.array, tensor.kind))
                self._names.append(tensor.name)
        self._memory = HeldMemory(arrays)

    def leaves(self, part: int) -> frozenset[int]:
        """Numbers of the leaves of a part of which anything is wanted."""
        return frozenset(self._wants.get(part, ()))

    def wants_of(self, part: int, piece: LeafPiece) -> list[Wanted]:
        """Those that want something of a piece of a leaf."""
        return [want for want in self._wants.get(part, {}).get(piece.leaf, ()) if want.has_any_of(piece)]

    def write(self, part: int, piece: LeafPiece, data: Bytes) -> None:
        """Put what a chunk holds of a leaf where it is wanted."""
        for want in self.wants_of(part, piece):
            self.fill(want, piece, data[piece.at : piece.at + piece.length])

    def fill(self, want: Wanted, piece: LeafPiece, held: Bytes) -> None:
        """Put what one array wants of a piece into it."""
        self._check_place(want.place)
        for patch in want.of(piece):
            self._writers[want.place].write(patch, cut_patch(held, patch, want.itemsize))

    def fill_packed(self, want: Wanted, piece: LeafPiece, data: Bytes, at: int) -> int:
        """The same from elements that were packed one patch after the other, from byte ``at`` on; returns where those
        end.
        """
        self._check_place(want.place)
        for patch in want.of(piece):
            length = patch_bytes(patch, want.itemsize)
            self._writers[want.place].write(patch, packed_patch(data[at : at + length], patch, want.itemsize))
            at += length
        return at

    def _check_place(self, place: int) -> None:
        if self._memory.moved([place]):
            raise freed_error(self._names[place])


class OwnSpans:
    """The rows of a part's span table that are of its rank's own leaves.

    Attributes:
        in_a_row: leaf -> its bytes, of those of which the part has the first bytes, and each once.
    """

    def __init__(self, spans: npt.NDArray[np.void]) -> None:
        own = spans[spans["table"] == OWN_TABLE]
        own = own[np.lexsort((own["start"], own["leaf"]))]
        self._rows = own
        leaves, first = np.unique(own["leaf"], return_index=True)
        stop = np.append(first[1:], len(own)).astype(np.int64)[: len(first)]
        self._places = dict(zip(leaves.tolist(), zip(first.tolist(), stop.tolist(), strict=True), strict=True))
        self.in_a_row: dict[int, int] = {}
        if len(own):
            ends = own["start"] + own["length"]
            expected = np.concatenate([np.zeros(1, dtype=np.uint64), ends[:-1]])
            expected[first] = 0
            breaks = np.concatenate([[0], np.cumsum(own["start"] != expected)])
            sound = breaks[stop] == breaks[first]
            self.in_a_row = dict(zip(leaves[sound].tolist(), ends[stop - 1][sound].tolist(), strict=True))

    def of(self, leaf: int) -> npt.NDArray[np.void]:
        """The rows of a leaf, ascending in its bytes."""
        first, stop = self._places.get(leaf, (0, 0))
        rows: npt.NDArray[np.void] = self._rows[first:stop]
        return rows


def check_bytes(tensor: WholeTensor, spans: Sequence[OwnSpans], where: str) -> None:
    """Check that the parts together hold every byte of each box of a tensor exactly once."""
    by_box: dict[tuple[Box, int], list[ShardSource]] = {}
    for source in tensor.sources:
        by_box.setdefault((source.box, -1), []).append(source)
    by_box |= {(source.box, source.part): [source] for source in tensor.own}
    itemsize = tensor.kind.itemsize
    for (box, _), sources in by_box.items():
        whole = box.elements * itemsize
        if len(sources) == 1 and spans[sources[0].part].in_a_row.get(sources[0].leaf) == whole:
            continue  # nearly always
        rows = [spans[source.part].of(source.leaf) for source in sources]
        found = np.concatenate([*rows, np.zeros(0, dtype=SPAN_DTYPE)])
        found = found[np.argsort(found["start"], kind="stable")]
        ends = found["start"] + found["length"]
        expected = np.concatenate([np.zeros(1, dtype=np.uint64), ends])
        if (found["start"] != expected[:-1]).any() or int(expected[-1]) != whole:
            raise CorruptFileError(
                "the parts do not hold every byte of a shard exactly once",
                expected=f"{whole} bytes of {tensor.name} {box}",
                found=f"{int(found['length'].sum())} bytes in {len(found)} spans",
                where=where,
                todo="the checkpoint was not written by a sound library: restore an earlier step",
            )


# --- rectangles of one box in another ---------------------------------------------------------------------------------


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
