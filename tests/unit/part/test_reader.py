"""Reading parts: golden files, bases, damage of every kind at every place, and tables that no writer makes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xxhash
import zstandard

from deeppart.errors import CorruptFileError, FormatError, NewerFormatError, StorageError
from deeppart.part import (
    FLAG_PER_RANK,
    FileSource,
    MemorySource,
    PartReader,
    part_file_name,
    step_name,
)
from tests.golden import forge, make

RAW = bytes(range(200))


def read_all(data: bytes) -> bytes:
    """Every chunk, checked and decoded."""
    reader = PartReader(MemorySource(data), where="part under test")
    return b"".join(reader.read_chunk(i) for i in range(len(reader.chunks)))


def refused(data: bytes) -> Exception:
    """Read everything; return the error, which must be one of the format's and must say where."""
    with pytest.raises((CorruptFileError, NewerFormatError)) as caught:
        read_all(data)
    assert "part under test" in str(caught.value)
    return caught.value


# --- golden ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_golden_part_reads_as_written(rank: int) -> None:
    with FileSource(make.PARTS / part_file_name(rank, 2)) as source:
        reader = PartReader(source, where="golden", expected_attempt=make.ATTEMPT, expected_rank=rank)
        raw = b"".join(reader.read_chunk(i) for i in range(len(reader.chunks)))
        digest = reader.verify()
    assert raw == make.RAW[rank]
    assert reader.spans.tolist() == make.SPANS[rank]
    assert reader.meta == make.META[rank]
    assert (reader.raw_bytes, reader.rank) == (len(raw), rank)
    assert digest == ("f20341c312e8131d02bf7c9467df72af", "7a03a37689c4bb41e6dfd5a705da7e4c")[rank]
    rows = reader.chunks[["offset", "encoded_length", "raw_length", "codec", "flags", "dtype"]].tolist()
    if rank == 0:
        assert rows == [(4096, 200, 200, 0, 0, b"float32"), (4296, 100, 100, 0, FLAG_PER_RANK, b"bfloat16")]
    else:
        assert rows == [(4096, 100, 100, 0, 0, b""), (4196, 23, 2500, 1, 0, b"int64")]


# --- parts with a base ------------------------------------------------------------------------------------------------


def test_golden_part_with_a_base() -> None:
    """One chunk lies in the golden part of the step before, in the directory of that."""
    with FileSource(make.LATER_FILES / part_file_name(0, 2)) as source:
        reader = PartReader(source, where="golden", expected_attempt=make.LATER, expected_rank=0)
        assert b"".join(reader.read_chunk(i) for i in range(2)) == make.LATER_RAW
        reader.check_bases()
        reader.verify()
        assert reader.bases == (make.BASE,)
        assert reader.chunks[["offset", "base"]].tolist() == [(4096, 1), (4096, 0)]


def referring(**wrong: Any) -> bytes:
    """A part of one chunk of 200 bytes in a base of 5000, made by hand; or one that is wrong somewhere."""
    row: dict[str, Any] = {"base": 1, "dtype": b"uint8"} | {k: v for k, v in wrong.items() if k in ("base", "offset")}
    bases = wrong.get("bases", [forge.base_row(bytes(5000), step=3, sequence=2)])
    rows = [forge.chunk_row(RAW, **row)]
    return forge.part(b"", rows, [forge.span_row(0, 0, 200, 0)], bases=bases, raw_bytes=200)


def test_what_is_sound_opens_without_its_base() -> None:
    reader = PartReader(MemorySource(referring()), where="part under test")
    assert [base.nbytes for base in reader.bases] == [5000]
    with pytest.raises(CorruptFileError, match=r"refers to another step[\s\S]*step-000000000003-f0e1d2c3"):
        reader.read_chunk(0)
    with pytest.raises(CorruptFileError):
        reader.check_bases()


@pytest.mark.parametrize("sequence", [7, 8, 2**63 - 1])
def test_a_base_must_be_an_earlier_part(sequence: int) -> None:
    error = refused(referring(bases=[forge.base_row(bytes(5000), step=3, sequence=sequence)]))
    assert "not earlier" in str(error)


def test_a_base_must_be_the_file_that_was_meant(tmp_path: Path) -> None:
    data = make.make_later_part()
    path, base = (tmp_path / step_name(each.key) / part_file_name(0, 2) for each in (make.LATER, make.ATTEMPT))
    for directory in (path.parent, base.parent):
        directory.mkdir()
    path.write_bytes(data)
    good, other = make.make_part(0)[0], make.make_part(1)[0]

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


def test_expectations_name_what_differs() -> None:
    source = MemorySource((make.PARTS / part_file_name(0, 2)).read_bytes())
    with pytest.raises(CorruptFileError, match=r"another attempt[\s\S]*step=1201"):
        PartReader(source, where="golden", expected_attempt=replace(make.ATTEMPT, step=1201))
    with pytest.raises(CorruptFileError, match="another rank"):
        PartReader(source, where="golden", expected_rank=1)
    with pytest.raises(CorruptFileError, match="another index digest"):
        PartReader(source, where="golden", expected_index_digest="0" * 32)
    with pytest.raises(CorruptFileError, match="another digest of the whole file"):
        PartReader(source, where="golden").verify(expected_digest="0" * 32)


PARTS = [make.make_part(rank)[0] for rank in range(2)]


# --- without new digests: what storage does --------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_every_flipped_byte_is_found(rank: int) -> None:
    damaged = bytearray(PARTS[rank])
    for i, mask in zip(range(len(damaged)), itertools.cycle((0xFF, 0x01, 0x80)), strict=False):
        damaged[i] ^= mask
        assert type(refused(bytes(damaged))) is CorruptFileError, i
        damaged[i] ^= mask
    assert read_all(bytes(damaged)) == make.RAW[rank]


@pytest.mark.parametrize("rank", [0, 1])
def test_every_truncation_is_found(rank: int) -> None:
    for length in range(len(PARTS[rank])):
        refused(PARTS[rank][:length])
        # the file keeps its length but its end was never written
        refused(PARTS[rank][:length].ljust(len(PARTS[rank]), b"\xee"))


def test_appended_bytes_are_found() -> None:
    for more in (b"\0", b"garbage", bytes(4096), PARTS[0][-64:], PARTS[0]):
        refused(PARTS[0] + more)


def test_mixed_files_are_found() -> None:
    """A header and payload of one file with index and footer of another: every digest by itself holds."""
    other = forge.simple_part(RAW, head=forge.header(step=1201))
    mixed = forge.simple_part(RAW)[:4296] + other[4296:]
    assert len(mixed) == len(other)
    assert "mixed" in str(refused(mixed))


# --- with new digests: what an evil or mad writer does ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"magic": b"\x89DPP\n\n\x1a\n"}, "not a deeppart part file"),
        ({"signed": 2}, "not as it is written"),
        ({"length": 8192}, "not as it is written"),
        ({"padding": b"\0\0\1"}, "not as it is written"),
        ({"rank": 2}, "rank 2 is not in a world of 2"),
        ({"world_size": 0}, "world_size 0 is not an integer from 1"),
        ({"world_size": 2**24 + 1}, "world_size"),
        ({"sequence": 2**63}, "sequence"),
        ({"step": 2**64 - 1}, "step"),
    ],
)
def test_impossible_header(wrong: dict[str, int], text: str) -> None:
    error = refused(forge.simple_part(RAW, head=forge.header(**wrong)))  # type: ignore[arg-type]
    assert text in str(error)
    assert type(error) is CorruptFileError


@pytest.mark.parametrize(("version", "kind"), [(0, FormatError), (8, FormatError), (10, NewerFormatError)])
def test_another_version_is_told_from_damage(version: int, kind: type[FormatError]) -> None:
    with pytest.raises(FormatError, match=f"version {version}; .* version 9") as caught:
        PartReader(MemorySource(forge.simple_part(RAW, head=forge.header(version=version))), where="here")
    assert type(caught.value) is kind and "deeppart" in str(caught.value.todo)


@pytest.mark.parametrize(
    "wrong",
    [
        {"footer_magic": b"DPPFOOTX"},
        {"footer_reserved": b"\1" + bytes(7)},
        {"file_length": 0},
        {"file_length": 2**64 - 1},
        {"index_offset": 0},
        {"index_offset": 4095},
        {"index_offset": 4295},
        {"index_offset": 2**64 - 1},
        {"index_length": 0},
        {"index_length": 63},
        {"index_length": 2**64 - 1},
        {"index_length": 2**64 - 4296, "index_offset": 4296},
        # adds up, but modulo 2**64 only
        {"index_offset": 4296 + 2**63, "index_length": 2**63 + 178},
        # adds up, but not to where the payload ends
        {"index_offset": 4297, "index_length": 177},
    ],
)
def test_impossible_footer(wrong: dict[str, int]) -> None:
    assert type(refused(forge.simple_part(RAW, **wrong))) is CorruptFileError


# --- zstd inside sound tables ----------------------------------------------------------------------------------------


def zstd_part(frame: bytes, raw_length: int, raw_digest: bytes) -> bytes:
    row = forge.chunk_row(frame, codec=1, raw_length=raw_length, raw_digest=raw_digest)
    spans = [forge.span_row(0, 0, raw_length, 0)]
    return forge.simple_part(frame, chunk_rows=[row], span_rows=spans, raw_bytes=raw_length)


def compressed(raw: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(raw)


def test_zstd_that_does_not_hold_what_the_table_says() -> None:
    digest: Callable[[bytes], bytes] = xxhash.xxh3_128_digest
    sound = zstd_part(compressed(bytes(1000)), 1000, digest(bytes(1000)))
    assert read_all(sound) == bytes(1000)
    bomb = zstd_part(compressed(bytes(64 * 1024**2)), 1024**2, digest(bytes(1024**2)))
    assert "frame of 67108864 bytes" in str(refused(bomb))
    assert "chunk 0 of 1" in str(refused(bomb))
    refused(zstd_part(compressed(bytes(1000)) + b"more", 1000, digest(bytes(1000))))
    other = zstd_part(compressed(b"\1" * 1000), 1000, digest(bytes(1000)))
    assert "decoded bytes of a chunk" in str(refused(other))


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
        ({"counts": (1, 0, 42)}, "do not fill the raw stream"),
        ({"counts": (0, 0, 122)}, "do not fill the payload"),
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
        ({"offset": 4296}, "after the payload"),
        ({"offset": 2**64 - 100}, "after the payload"),  # plus the length it wraps round to byte 100
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


def test_boxes_of_one_leaf_have_bytes_of_their_own() -> None:
    rows = [forge.span_row(7, 0, 100, at, box=box) for at, box in ((0, 3), (100, 2**64 - 1))]
    reader = PartReader(MemorySource(forge.simple_part(RAW, span_rows=rows)), where="here")
    assert reader.spans["box"].tolist() == [3, 2**64 - 1]
    twice = [forge.span_row(7, 0, 100, at, box=3) for at in (0, 100)]
    assert "overlaps" in str(refused(forge.simple_part(RAW, span_rows=twice)))


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


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"base": 2}, "not in the table"),
        ({"base": 2**32 - 1}, "not in the table"),
        ({"base": 0}, "fill the payload|a base without chunks|begins after"),
        ({"offset": 4095}, "within its base"),
        ({"offset": 5000 - 128 - 199}, "within its base"),
        ({"offset": 2**64 - 100}, "within its base"),
        ({"bases": [forge.base_row(bytes(5000)), forge.base_row(b"\1" * 5001, sequence=1)]}, "a base without chunks"),
        ({"bases": [forge.base_row(bytes(5000))] * 2}, "repeated"),
        ({"bases": [forge.base_row(bytes(4223))]}, "impossible length"),
        ({"bases": [forge.base_row(bytes(5000), nbytes=2**63)]}, "impossible length"),
        ({"bases": [forge.base_row(bytes(5000), step=2**63)]}, "impossible step"),
        ({"bases": [forge.base_row(bytes(5000 + i)) for i in range(65)]}, "too many bases"),
    ],
)
def test_impossible_base(wrong: dict[str, object], text: str) -> None:
    with pytest.raises(CorruptFileError, match=text):
        PartReader(MemorySource(referring(**wrong)), where="part under test")
