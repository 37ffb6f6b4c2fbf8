"""The index of a part: tables that no writer makes are refused, whoever has sealed them."""

from __future__ import annotations

import struct

import pytest

from deeppart.errors import CorruptFileError, NewerFormatError
from tests.golden import forge
from tests.unit.part.read_whole import read_all, refused

RAW = bytes(range(200))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"index_magic": b"DPPINDEY"}, "no valid head"),
        ({"index_reserved": b"\1" + bytes(11)}, "no valid head"),
        ({"header_digest": bytes(8)}, "another header"),
        ({"counts": (2**64 - 1, 1, 2)}, "too many chunks"),
        ({"counts": (1, 2**63, 2)}, "too many spans"),
        ({"counts": (1, 1, 2**40)}, "too many bytes of meta"),
        ({"counts": (1 + 2**60, 1, 2)}, "too many chunks"),  # 80 * 2**60 is 0 modulo 2**64
        ({"counts": (2**24, 1, 2)}, "do not add up"),
        ({"counts": (1, 2**24, 2)}, "do not add up"),
        ({"counts": (1, 1, 2**28)}, "do not add up"),
        ({"counts": (1, 1, 1)}, "do not add up"),
        ({"counts": (0, 1, 82)}, "do not fill the payload"),
        ({"counts": (1, 0, 34)}, "do not fill the raw stream"),
        ({"counts": (0, 0, 114)}, "do not fill the payload"),
        ({"raw_bytes": 199}, "not as long as the raw stream"),
        ({"raw_bytes": 201}, "not as long as the raw stream"),
        ({"raw_bytes": 2**64 - 1}, "too many raw bytes"),
    ],
)
def test_impossible_counts(wrong: dict[str, object], text: str) -> None:
    error = refused(forge.simple_part(RAW, **wrong))
    assert text in str(error)
    assert type(error) is CorruptFileError


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"offset": 0}, "chunk 0 of 1"),
        ({"offset": 4095}, "where the one before ends"),
        ({"offset": 4097}, "where the one before ends"),
        ({"offset": 4296}, "behind the payload"),
        ({"offset": 2**64 - 100}, "behind the payload"),  # plus the length it wraps round to byte 100
        ({"encoded_length": 199}, "do not fill the payload"),
        ({"encoded_length": 201}, "do not fill the payload"),
        ({"encoded_length": 0, "raw_length": 200}, "encoded length"),
        ({"encoded_length": 2**64 - 1, "raw_length": 200}, "encoded length"),
        ({"encoded_length": 0}, "raw length"),
        ({"raw_length": 2**60}, "raw length"),
        ({"raw_length": 64 * 1024**2 + 1}, "raw length"),
        ({"raw_length": 2**64 - 1}, "raw length"),
        ({"raw_length": 199}, "encoded length"),
        ({"raw_length": 201}, "its two lengths differ"),
        ({"raw_digest": bytes(16)}, "its two digests differ"),
        ({"base": 1}, "not in the table"),
        ({"dtype": b"a\0b"}, "dtype tag"),
        ({"dtype": b"../etc/x"}, "dtype tag"),
        ({"dtype": b"\xff" * 16}, "dtype tag"),
        ({"encoded_digest": bytes(16), "raw_digest": bytes(16)}, "digest of a chunk"),
        ({"codec": 1}, "zstd"),  # not a frame
    ],
)
def test_impossible_chunk(wrong: dict[str, object], text: str) -> None:
    row = forge.chunk_row(RAW, **wrong)  # type: ignore[arg-type]
    error = refused(forge.simple_part(RAW, chunk_rows=[row]))
    assert text in str(error)
    assert type(error) is CorruptFileError


@pytest.mark.parametrize("wrong", [{"codec": 3}, {"codec": 65535}, {"flags": 2}, {"flags": 0x8001}])
def test_codec_or_flag_of_the_future(wrong: dict[str, int]) -> None:
    row = forge.chunk_row(RAW, **wrong)  # type: ignore[arg-type]
    assert type(refused(forge.simple_part(RAW, chunk_rows=[row]))) is NewerFormatError


def two_chunks(second_offset: int) -> bytes:
    rows = [forge.chunk_row(RAW[:100]), forge.chunk_row(RAW[100:], offset=second_offset)]
    return forge.simple_part(RAW, chunk_rows=rows)


def test_chunks_with_gap_or_overlap_or_out_of_order() -> None:
    assert read_all(two_chunks(4196)) == RAW
    for second_offset in (4096, 4195, 4197, 4295):
        assert "chunk 1 of 2" in str(refused(two_chunks(second_offset)))
    rows = [forge.chunk_row(RAW[100:], offset=4196), forge.chunk_row(RAW[:100])]
    assert "where the one before ends" in str(refused(forge.simple_part(RAW, chunk_rows=rows)))


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 0, 199, 0)],
        [(0, 0, 201, 0)],
        [(0, 0, 0, 0), (0, 0, 200, 0)],
        [(0, 0, 200, 1)],
        [(0, 0, 200, 2**64 - 200)],
        [(0, 0, 2**64 - 1, 0)],
        [(0, 0, 2**64 - 56, 56), (0, 0, 200, 0)],
        [(0, 0, 100, 0), (1, 0, 2**64 - 50, 100), (2, 0, 150, 50)],  # back to back, modulo 2**64 only
        [(0, 2**64 - 1, 200, 0)],
        [(0, 2**62 + 1, 200, 0)],
        [(0, 0, 100, 0), (1, 0, 100, 99)],
        [(0, 0, 100, 0), (1, 0, 99, 101)],
        [(0, 0, 100, 100), (1, 0, 100, 0)],
        [(0, 0, 100, 0), (0, 99, 100, 100)],
        [(0, 0, 100, 0), (0, 0, 100, 100)],
        [(7, 50, 100, 0), (3, 0, 50, 100), (7, 0, 50, 150), (7, 149, 1, 199)],
    ],
)
def test_impossible_spans(rows: list[tuple[int, int, int, int]]) -> None:
    span_rows = [forge.span_row(*row) for row in rows]
    error = refused(forge.simple_part(RAW, span_rows=span_rows))
    assert "span" in str(error)
    assert type(error) is CorruptFileError


def test_span_behind_the_raw_stream() -> None:
    rows = [forge.span_row(0, 0, 200, 2**64 - 200)]
    assert "begins behind the raw stream" in str(refused(forge.simple_part(RAW, span_rows=rows)))


def test_unknown_leaf_table() -> None:
    assert "span 0 of 1" in str(refused(forge.simple_part(RAW, span_rows=[forge.span_row(0, 0, 200, 0, table=2)])))


def test_tables_as_documented() -> None:
    """Offsets in docs/format.md, spelled out once more."""
    data = forge.simple_part(RAW, meta=b"[]")
    assert struct.unpack_from("<QQQQ", data, 4296 + 8) == (1, 1, 2, 200)
    assert struct.unpack_from("<QQQ", data, 4296 + 64) == (4096, 200, 200)
    assert struct.unpack_from("<IIQQQ", data, 4296 + 64 + 80) == (0, 0, 0, 200, 0)
    assert struct.unpack_from("<QQQ", data, len(data) - 56) == (4296, 178, len(data))
