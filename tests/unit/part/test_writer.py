"""Writing parts: byte for byte what docs/format.md says, and what is refused before it is written."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pytest

from deeppart.codec import EncodedChunk
from deeppart.errors import FormatError
from deeppart.part import SPAN_DTYPE, PartWriter, part_file_name
from deeppart.part.format import BASE_DTYPE, CHUNK_DTYPE
from tests.golden import forge, make

ONE_SPAN = [(0, 0, 0, 200, 0)]
RAW = memoryview(bytes(range(200)))


def spans_of(rows: Sequence[tuple[int, ...]]) -> np.ndarray:
    """Of (leaf, table, start, length, raw_offset)."""
    return np.array([(leaf, table, 0, *rest) for leaf, table, *rest in rows], dtype=SPAN_DTYPE)


#: Table and box, and the rest, of the spans of rank 0.
ROWS = [((table, box), (leaf, start, n, at)) for leaf, table, box, start, n, at in make.SPANS[0]]


def test_library_writes_what_the_document_says() -> None:
    """``forge`` follows docs/format.md without using the library."""
    raw = make.RAW[0]
    rows = [
        forge.chunk_row(raw[:200], dtype=b"float32"),
        forge.chunk_row(raw[200:], offset=4296, dtype=b"bfloat16", flags=1),
    ]
    spans = [forge.span_row(*row, table=table, box=box) for (table, box), row in ROWS]
    golden = (make.PARTS / part_file_name(0, 2)).read_bytes()
    assert forge.part(raw, rows, spans, meta=make.META[0]) == make.make_part(0)[0] == golden
    assert (CHUNK_DTYPE.itemsize, SPAN_DTYPE.itemsize) == (80, 40)


def test_library_writes_a_base_as_the_document_says() -> None:
    base, raw = make.make_part(0)[0], make.LATER_RAW
    rows = [
        forge.chunk_row(raw[:200], base=1, dtype=b"float32"),
        forge.chunk_row(raw[200:], dtype=b"bfloat16", flags=1),
    ]
    spans = [forge.span_row(*row, table=table, box=box) for (table, box), row in ROWS]
    head = forge.header(sequence=8, step=1300)
    bases = [forge.base_row(base, step=1200, sequence=7)]
    data = forge.part(raw[200:], rows, spans, head=head, bases=bases, raw_bytes=300)
    assert data == make.make_later_part() == (make.LATER_FILES / part_file_name(0, 2)).read_bytes()
    assert BASE_DTYPE.itemsize == 40


# --- writer ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails_at", range(4))
def test_after_a_failed_write_the_part_is_lost(fails_at: int) -> None:
    class Failing(io.BytesIO):
        writes = 0

        def write(self, buffer: object, /) -> int:
            self.writes += 1
            if self.writes == fails_at + 1:
                raise OSError(28, "No space left on device")
            return 0

    sink = Failing()
    with pytest.raises(OSError, match="No space"):
        writer = PartWriter(sink, make.ATTEMPT, 0)
        writer.add_chunk(len(RAW), EncodedChunk(0, RAW))
        writer.finish(spans_of(ONE_SPAN), b"")
    if fails_at:
        with pytest.raises(FormatError, match="a write to it failed"):
            writer.add_chunk(len(RAW), EncodedChunk(0, RAW))
        assert sink.writes == fails_at + 1
