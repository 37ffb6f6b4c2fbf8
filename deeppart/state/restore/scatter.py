"""Scatter: bytes of the raw stream back into arrays, wherever and however those lie in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from deeppart.errors import CorruptFileError, FreedMemoryError
from deeppart.part import OWN_TABLE
from deeppart.state.document.structure import Structure
from deeppart.state.memory.copies import memmove
from deeppart.state.memory.held import HeldMemory
from deeppart.state.tree.leaves import Array, Bytes, LeafType, flat_bytes, lies_flat_on_host, rectangles

#: Pieces from this length on are copied while other threads run.
_LONG_BYTES = 256 << 10


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
