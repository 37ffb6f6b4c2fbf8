"""The layout of one rank's share in memory and in its part file: consecutive spans, cut into chunks.

Pure arithmetic over leaf types and a partition plan. The *raw stream* of a part is its spans one after another: larger
element sizes first, so that every span is aligned without padding, then shared before per-rank, then untrained before
trained, then by leaf. A chunk has one dtype, only shared or only per-rank bytes, and only trained or only untrained
leaves: so readers can fetch just what they need, codecs know the type, and unchanged leaves need not be written again
with trained ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deeppart.part import SPAN_DTYPE
from deeppart.state.tensors import LeafType

#: Raw bytes per chunk, at most. Small enough to stay in cache between hashing and writing, large enough that a system
#: call per chunk does not matter.
CHUNK_BYTES = 4 << 20
#: A span of at least this many bytes shares no chunk with others: it can be restored in place.
ALONE_BYTES = 1 << 20

#: ``table`` of a span: bytes of all ranks, or of this rank alone.
SHARED, OWN = 0, 1


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """One chunk of the raw stream: ``[start, start + length)``, in bytes."""

    start: int
    length: int
    dtype: str
    per_rank: bool


@dataclass(frozen=True, slots=True)
class ShareLayout:
    """A rank's share.

    Attributes:
        spans: rows of ``part.SPAN_DTYPE`` in raw-stream order, with this rank's leaf numbers and without boxes.
        chunks: the chunks of the raw stream.
        nbytes: length of the raw stream.
    """

    spans: npt.NDArray[np.void]
    chunks: tuple[ChunkPlan, ...]
    nbytes: int


def lay_out(
    types: Sequence[LeafType],
    shared: Sequence[tuple[int, int, int]],
    own: Sequence[tuple[int, int, int]],
    trained: Collection[int] = (),
) -> ShareLayout:
    """Arrange a share's spans and cut them into chunks."""
    rows = [(SHARED, *span) for span in shared]
    rows += [(OWN, *span) for span in own]

    def order(row: tuple[int, int, int, int]) -> tuple[object, ...]:
        table, leaf, start, _ = row
        return (-_alignment(types[leaf]), table, types[leaf].tag, leaf in trained, leaf, start)

    rows.sort(key=order)
    spans = np.zeros(len(rows), dtype=SPAN_DTYPE)
    for place, name in enumerate(("table", "leaf", "start", "length")):
        spans[name] = [row[place] for row in rows]
    ends = np.cumsum(spans["length"], dtype=np.uint64)
    spans["raw_offset"] = ends - spans["length"]
    chunks = tuple(_cut_chunks(spans, types, trained))
    return ShareLayout(spans, chunks, int(ends[-1]) if len(rows) else 0)


def _alignment(kind: LeafType) -> int:
    """Sort key: power-of-two element sizes descending, odd sizes (fixed-width text) last, as bytes."""
    return kind.itemsize if kind.itemsize & (kind.itemsize - 1) == 0 else 1


def _cut_chunks(
    spans: npt.NDArray[np.void], types: Sequence[LeafType], trained: Collection[int]
) -> Iterable[ChunkPlan]:
    """Spans of one kind share a chunk until it is full; large spans are cut alone."""
    start = length = 0
    dtype, table, changes = "", SHARED, False
    columns = (spans[name].tolist() for name in ("table", "leaf", "length"))
    for row_table, leaf, row_length in zip(*columns, strict=True):
        row_dtype = types[leaf].tag
        alone = row_length >= ALONE_BYTES
        other = (row_dtype, row_table, leaf in trained) != (dtype, table, changes)
        full = alone or other or length + row_length > CHUNK_BYTES
        if length and full:
            yield ChunkPlan(start, length, dtype, table == OWN)
            start, length = start + length, 0
        dtype, table, changes = row_dtype, row_table, leaf in trained
        length += row_length
        itemsize = types[leaf].itemsize
        most = max(itemsize, CHUNK_BYTES - CHUNK_BYTES % itemsize)  # a chunk holds whole elements, at least one
        while alone and length:
            piece = min(length, most)
            yield ChunkPlan(start, piece, dtype, table == OWN)
            start, length = start + piece, length - piece
    if length:
        yield ChunkPlan(start, length, dtype, table == OWN)
