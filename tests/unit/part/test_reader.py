"""Reading parts: golden files, bases, and what the interface promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deeppart.errors import CorruptFileError, FormatError, StorageError
from deeppart.part import (
    FLAG_PER_RANK,
    FileSource,
    MemorySource,
    PartReader,
    base_file_name,
    part_file_name,
)
from tests.golden import forge, make_v1, make_v2

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
RAW = memoryview(bytes(range(200)))


# --- golden ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_golden_part_reads_as_written(rank: int) -> None:
    with FileSource(GOLDEN / part_file_name(rank, 2)) as source:
        reader = PartReader(source, where="golden", expected_attempt=make_v1.ATTEMPT, expected_rank=rank)
        raw = b"".join(reader.read_chunk(i) for i in range(len(reader.chunks)))
        digest = reader.verify()
    assert raw == make_v1.RAW[rank]
    assert reader.spans.tolist() == make_v1.SPANS[rank]
    assert reader.meta == make_v1.META[rank]
    assert (reader.raw_bytes, reader.rank) == (len(raw), rank)
    assert digest == ("d173878d6df67c9c96f2341e1322bf69", "26866b8a6fb33b8f6f38a78084bc19b9")[rank]
    rows = reader.chunks[["offset", "encoded_length", "raw_length", "codec", "flags", "dtype"]].tolist()
    if rank == 0:
        assert rows == [(4096, 200, 200, 0, 0, b"float32"), (4296, 100, 100, 0, FLAG_PER_RANK, b"bfloat16")]
    else:
        assert rows == [(4096, 100, 100, 0, 0, b""), (4196, 23, 2500, 1, 0, b"int64")]


# --- parts with a base ------------------------------------------------------------------------------------------------


def test_golden_part_with_a_base() -> None:
    """One chunk lies in version 1's golden part, which lies beside it under the name of a base."""
    directory = GOLDEN.parent / "v2"
    with FileSource(directory / part_file_name(0, 2)) as source:
        reader = PartReader(source, where="golden", expected_attempt=make_v2.LATER, expected_rank=0)
        assert b"".join(reader.read_chunk(i) for i in range(2)) == make_v2.LATER_RAW
        reader.check_bases()
        reader.verify()
        assert reader.bases == (make_v2.BASE,)
        assert reader.chunks[["offset", "base"]].tolist() == [(4096, 1), (4096, 0)]


def referring(**wrong: Any) -> bytes:
    """A part of one chunk of 200 bytes in a base of 5000, made by hand; or one that is wrong somewhere."""
    row: dict[str, Any] = {"base": 1, "dtype": b"uint8"} | {k: v for k, v in wrong.items() if k in ("base", "offset")}
    bases = wrong.get("bases", [forge.base_row(bytes(5000), step=3)])
    head = forge.header(version=int(wrong.get("version", 2)))
    rows = [forge.chunk_row(bytes(RAW), **row)]
    return forge.part(b"", rows, [forge.span_row(0, 0, 200, 0)], head=head, bases=bases, raw_bytes=200)


def test_what_is_sound_opens_without_its_base() -> None:
    reader = PartReader(MemorySource(referring()), where="part under test")
    assert [base.nbytes for base in reader.bases] == [5000]
    with pytest.raises(CorruptFileError, match=r"no other files beside it[\s\S]*base-00000-of-00002-"):
        reader.read_chunk(0)
    with pytest.raises(CorruptFileError):
        reader.check_bases()


def test_a_base_must_be_the_file_that_was_meant(tmp_path: Path) -> None:
    data, _ = make_v2.make_later_part()
    path, base = tmp_path / part_file_name(0, 2), tmp_path / base_file_name(0, 2, make_v2.BASE.index_digest)
    path.write_bytes(data)
    good, other = make_v1.make_part(0)[0], make_v1.make_part(1)[0]

    def refusal() -> str:
        with FileSource(path) as source, pytest.raises((CorruptFileError, StorageError)) as caught:
            PartReader(source, where="later").check_bases()
        return str(caught.value)

    assert "cannot open" in refusal()
    for content, text in (
        (good[:-1], "another length"),
        (other, "another length"),
        (good[:-64] + other[-64:], "another length than its footer"),
        (good[:-3] + b"abc", "digest of the footer"),
    ):
        base.write_bytes(content)
        assert text in refusal()
    base.write_bytes(good[:4100] + b"\xff" + good[4101:])  # its payload is not looked at before a chunk is read
    with FileSource(path) as source:
        reader = PartReader(source, where="later")
        reader.check_bases()
        with pytest.raises(CorruptFileError, match=r"digest of a chunk[\s\S]*chunk 0 of 2"):
            reader.read_chunk(0)


# --- reader ----------------------------------------------------------------------------------------------------------


def golden_reader(rank: int = 1) -> PartReader:
    return PartReader(MemorySource((GOLDEN / part_file_name(rank, 2)).read_bytes()), where="golden")


def test_chunks_for() -> None:
    reader = golden_reader()  # chunks of 100 and 2500 bytes
    assert reader.raw_starts.tolist() == [0, 100, 2600]
    for start, stop, chunks in [
        (0, 1, [0]),
        (0, 100, [0]),
        (99, 101, [0, 1]),
        (100, 101, [1]),
        (2599, 2600, [1]),
        (0, 2600, [0, 1]),
        (100, 100, []),
        (2600, 2600, []),
    ]:
        assert list(reader.chunks_for(start, stop)) == chunks, (start, stop)
    for start, stop in [(-1, 5), (5, 4), (0, 2601)]:
        with pytest.raises(FormatError, match="2600 bytes"):
            reader.chunks_for(start, stop)


def test_tables_are_read_only() -> None:
    reader = golden_reader()
    for table in (reader.chunks, reader.spans, reader.raw_starts):
        with pytest.raises(ValueError, match="read-only"):
            table[0] = table[0]


def test_expectations_name_what_differs() -> None:
    source = MemorySource((GOLDEN / part_file_name(0, 2)).read_bytes())
    with pytest.raises(CorruptFileError, match=r"another attempt[\s\S]*step=1201"):
        PartReader(source, where="golden", expected_attempt=replace(make_v1.ATTEMPT, step=1201))
    with pytest.raises(CorruptFileError, match="another rank"):
        PartReader(source, where="golden", expected_rank=1)
    with pytest.raises(CorruptFileError, match="another index digest"):
        PartReader(source, where="golden", expected_index_digest="0" * 32)
    with pytest.raises(CorruptFileError, match="another digest of the whole file"):
        PartReader(source, where="golden").verify(expected_digest="0" * 32)


def test_scratch_memory() -> None:
    reader = golden_reader()
    scratch = memoryview(bytearray(150))
    raw = reader.read_chunk(0, scratch)
    assert bytes(raw) == make_v1.RAW[1][:100] == bytes(scratch[:100])
    assert bytes(reader.read_chunk(1, scratch)) == make_v1.RAW[1][100:]
    with pytest.raises(FormatError, match="too short") as caught:
        reader.read_chunk(0, scratch[:99])
    assert not isinstance(caught.value, CorruptFileError)


def test_encoded_chunks_read_by_the_caller() -> None:
    reader = golden_reader()
    data = (GOLDEN / part_file_name(1, 2)).read_bytes()
    encoded = memoryview(data)[4196 : 4196 + 23]
    reader.check_chunk(1, encoded)
    assert bytes(reader.decode_chunk(1, encoded)) == make_v1.RAW[1][100:]
    flipped = bytearray(encoded)
    flipped[13] ^= 1
    for wrong in (encoded[:-1], memoryview(flipped), encoded[:0]):
        with pytest.raises(CorruptFileError, match=r"chunk 1 of 2 \(bytes 4196 to 4219\)"):
            reader.check_chunk(1, wrong)
        with pytest.raises(CorruptFileError, match="chunk 1 of 2"):
            reader.decode_chunk(1, wrong)
