"""Tables of node files: any that is written comes back, and of any other bytes nothing but a typed error does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppart.errors import FormatError
from deeppart.part import SECTION_ALIGNMENT, MemorySource, NodeTable, Section, SectionPath, most_part_bytes, read_table
from deeppart.part.format import MIN_FILE_BYTES

PATH = "node-00000-of-00008.dpn"


@st.composite
def tables(draw: st.DrawFn) -> NodeTable:
    """Of some ranks of a world of 8, rank 0 among them, with rooms that are larger than needed or not."""
    ranks = sorted({0, *draw(st.sets(st.integers(0, 7)))})
    sections, at = list[Section](), 0
    for rank in ranks:
        nbytes = draw(st.integers(MIN_FILE_BYTES, 3 << 20))
        sections.append(Section(rank, at, nbytes, draw(st.binary(min_size=16, max_size=16)).hex()))
        at = -(-(at + nbytes) // SECTION_ALIGNMENT + -draw(st.integers(0, 2))) * SECTION_ALIGNMENT
        at = max(at, -(-sections[-1].end // SECTION_ALIGNMENT) * SECTION_ALIGNMENT)
    return NodeTable(0, 8, tuple(sections))


class Tail:
    """A file of which only the end is there: what lies before is never asked for."""

    def __init__(self, offset: int, data: bytes) -> None:
        self._offset, self._data = offset, data
        self.size = offset + len(data)

    def read_at(self, offset: int, length: int) -> bytes:
        assert offset >= self._offset and offset + length <= self.size and length <= len(self._data)
        return self._data[offset - self._offset : offset - self._offset + length]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        raise AssertionError

    def beside(self, name: str) -> MemorySource:
        raise AssertionError


def read(source: Tail) -> NodeTable:
    return read_table(source, SectionPath(PATH, 0, 0, 8))


@given(tables())
def test_comes_back(table: NodeTable) -> None:
    assert read(Tail(table.offset, table.encode())) == table


@given(tables(), st.data())
def test_one_byte_that_has_changed_is_found(table: NodeTable, data: st.DataObject) -> None:
    written = bytearray(table.encode())
    at = data.draw(st.integers(0, len(written) - 1))
    written[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FormatError):
        read(Tail(table.offset, bytes(written)))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_typed_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        read(Tail(0, data))


@given(st.integers(0, 2**50), st.integers(0, 2**24), st.integers(0, 2**24), st.integers(0, 2**28), st.booleans())
def test_room_is_never_less_for_more(raw: int, chunks: int, spans: int, meta: int, signed: bool) -> None:
    room = most_part_bytes(raw, chunks, spans, meta, signed=signed)
    assert room >= MIN_FILE_BYTES + raw + meta
    assert most_part_bytes(raw + 1, chunks, spans, meta, signed=signed) == room + 1
