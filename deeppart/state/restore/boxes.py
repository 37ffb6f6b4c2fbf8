"""Whole tensors and boxes of them, filled from the shards that ranks have saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from deeppart.errors import CorruptFileError, FreedMemoryError
from deeppart.model.boxes import Box
from deeppart.part import OWN_TABLE
from deeppart.state.document.whole import ShardSource, WholeTensor
from deeppart.state.memory.held import HeldMemory
from deeppart.state.restore.patches import BoxWriter, Patch, cut_patch, patches
from deeppart.state.restore.scatter import LeafPiece
from deeppart.state.tree.leaves import Array, Bytes


class LiveBox(NamedTuple):
    """An array to fill, and the box of a tensor that it holds."""

    array: Array
    box: Box

    @classmethod
    def whole(cls, array: Array) -> LiveBox:
        """An array that is all of the tensor."""
        return cls(array, Box.whole(tuple(array.shape)))


class _Want(NamedTuple):
    """A leaf of a part, the box that it is, and an array that wants some of it."""

    source: ShardSource
    live: LiveBox
    place: int


class BoxScatter:
    """Writes what parts hold of sharded tensors into the boxes that are wanted of them.

    Args:
        wanted: number of a leaf -> the tensor, and the arrays to fill with boxes of it.
    """

    def __init__(self, wanted: Mapping[int, tuple[WholeTensor, Sequence[LiveBox]]]) -> None:
        self._wants: dict[tuple[int, int], list[_Want]] = {}
        self._writers: list[BoxWriter] = []
        self._itemsizes: list[int] = []
        arrays: list[Array] = []
        for tensor, live in wanted.values():
            for each in live:
                place = len(arrays)
                arrays.append(each.array)
                self._writers.append(BoxWriter(each.array, tensor.kind))
                self._itemsizes.append(tensor.kind.itemsize)
                for source in tensor.sources:
                    if source.box.common(each.box) is not None:
                        self._wants.setdefault((source.part, source.leaf), []).append(_Want(source, each, place))
        self._memory = HeldMemory(arrays)

    def leaves(self, part: int) -> set[int]:
        """Numbers of the leaves of a part of which anything is wanted."""
        return {leaf for number, leaf in self._wants if number == part}

    def wanted(self, part: int, piece: LeafPiece) -> Iterator[tuple[int, Patch, int]]:
        """What is wanted of a piece of a leaf: the place of the array, the patch, and bytes of an element."""
        for want in self._wants.get((part, piece.leaf), ()):
            itemsize = self._itemsizes[want.place]
            for patch in patches(want.source.box, piece.start, piece.length, itemsize, want.live.box):
                yield want.place, patch, itemsize

    def write(self, part: int, piece: LeafPiece, data: Bytes) -> None:
        """Put what a chunk holds of a leaf where it is wanted.

        Args:
            data: the chunk.

        Raises:
            FreedMemoryError: memory was freed or replaced since this was made.
        """
        held = data[piece.at : piece.at + piece.length]
        for place, patch, itemsize in self.wanted(part, piece):
            self.put(place, patch, cut_patch(held, patch, itemsize))

    def put(self, place: int, patch: Patch, elements: npt.NDArray[Any]) -> None:
        """Put the elements of a patch into an array.

        Raises:
            FreedMemoryError: its memory was freed or replaced since this was made.
        """
        if self._memory.moved([place]):
            raise FreedMemoryError(
                "memory of the live state was freed or replaced while it was being restored",
                expected="a state that nobody else changes until restore() returns",
                found="another address or length of a tensor's storage",
                todo="parts of the live state already hold the checkpoint's bytes: restore again",
            )
        self._writers[place].write(patch, elements)


def check_bytes(tensor: WholeTensor, spans: Sequence[npt.NDArray[np.void]], where: str) -> None:
    """Check that the parts together hold every byte of each box of a tensor exactly once.

    Args:
        spans: span table of each part.

    Raises:
        CorruptFileError: they do not.
    """
    by_box: dict[Box, list[ShardSource]] = {}
    for source in tensor.sources:
        by_box.setdefault(source.box, []).append(source)
    for box, sources in by_box.items():
        rows = []
        for source in sources:
            table = spans[source.part]
            mine = table[(table["table"] == OWN_TABLE) & (table["leaf"] == source.leaf)].copy()
            mine["leaf"] = 0
            rows.append(mine)
        found = np.concatenate(rows)
        found = found[np.argsort(found["start"], kind="stable")]
        ends = found["start"] + found["length"]
        expected = np.concatenate([np.zeros(1, dtype=np.uint64), ends])
        whole = box.elements * tensor.kind.itemsize
        if (found["start"] != expected[:-1]).any() or int(expected[-1]) != whole:
            raise CorruptFileError(
                "the parts do not hold every byte of a shard exactly once",
                expected=f"{whole} bytes of {tensor.name} {box}",
                found=f"{int(found['length'].sum())} bytes in {len(found)} spans",
                where=where,
                todo="the checkpoint was not written by a sound library: restore an earlier step",
            )
