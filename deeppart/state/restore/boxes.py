"""Whole tensors and boxes of them, filled from the shards that ranks have saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from deeppart.errors import CorruptFileError
from deeppart.model.boxes import Box
from deeppart.part import OWN_TABLE, SPAN_DTYPE
from deeppart.state.document.whole import ShardSource, WholeTensor
from deeppart.state.memory.held import HeldMemory
from deeppart.state.restore.patches import BoxWriter, Patch, cut_patch, packed_patch, patch_bytes, patches
from deeppart.state.restore.scatter import LeafPiece, freed_error
from deeppart.state.tree.leaves import Array, Bytes


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
