"""Writing and reading part files: what the API promises, golden files, and the files' literal bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from deeppart.codec import Chooser, EncodedChunk
from deeppart.errors import CorruptFileError, FormatError, StorageError
from deeppart.part import (
    BASE_DTYPE,
    CHUNK_DTYPE,
    FLAG_PER_RANK,
    SPAN_DTYPE,
    ChunkPlace,
    FileSource,
    MemorySource,
    PartReader,
    PartWriter,
    base_file_name,
    decode_manifest,
    encode_manifest,
    parse_base_file_name,
    parse_part_file_name,
    part_file_name,
)
from tests.golden import forge, make_v1, make_v2, make_v3

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
ONE_SPAN = [(0, 0, 0, 200, 0)]
RAW = memoryview(bytes(range(200)))


def spans_of(rows: Sequence[tuple[int, ...]]) -> np.ndarray:
    return np.array(rows, dtype=SPAN_DTYPE)


def started() -> PartWriter:
    writer = PartWriter(io.BytesIO(), make_v1.ATTEMPT, 0)
    writer.add_chunk(RAW, EncodedChunk(0, RAW))
    return writer


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


def test_golden_raw_part_is_written_bit_for_bit() -> None:
    assert make_v1.make_part(0)[0] == (GOLDEN / part_file_name(0, 2)).read_bytes()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_golden_manifest(version: int) -> None:
    data = (GOLDEN.parent / f"v{version}" / "manifest").read_bytes()
    manifest = decode_manifest(data, where="golden")
    assert (encode_manifest(manifest) == data) == (version == 3)
    assert manifest.compared == (make_v3.COMPARED if version == 3 else None)
    assert manifest.attempt == make_v1.ATTEMPT
    assert (manifest.created, manifest.library) == ("2026-11-21T04:05:06+00:00", "deeppart 0.1.0")
    assert manifest.structure == {"kind": "dict", "leaves": [["w", 1, -2.5, None, True, "é☃"]]}
    for record in manifest.parts:
        with FileSource(GOLDEN / record.file) as source:
            reader = PartReader(source, where=record.file, expected_index_digest=record.index_digest)
            reader.verify(expected_digest=record.digest)
            assert (source.size, reader.raw_bytes) == (record.nbytes, record.raw_bytes)
    assert manifest.parts[0] == make_v1.make_part(0)[1].record(make_v1.ATTEMPT, 0)


def test_library_writes_what_the_document_says() -> None:
    """``forge`` follows docs/format.md without using the library."""
    raw = make_v1.RAW[0]
    rows = [
        forge.chunk_row(raw[:200], dtype=b"float32"),
        forge.chunk_row(raw[200:], offset=4296, dtype=b"bfloat16", flags=1),
    ]
    spans = [forge.span_row(leaf, start, n, at, table=table) for leaf, table, start, n, at in make_v1.SPANS[0]]
    assert forge.part(raw, rows, spans, meta=make_v1.META[0]) == make_v1.make_part(0)[0]
    assert (CHUNK_DTYPE.itemsize, SPAN_DTYPE.itemsize) == (80, 32)


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


def test_library_writes_a_base_as_the_document_says() -> None:
    base, raw = make_v1.make_part(0)[0], make_v2.LATER_RAW
    rows = [
        forge.chunk_row(raw[:200], base=1, dtype=b"float32"),
        forge.chunk_row(raw[200:], dtype=b"bfloat16", flags=1),
    ]
    spans = [forge.span_row(leaf, start, n, at, table=table) for leaf, table, start, n, at in make_v1.SPANS[0]]
    head = forge.header(version=2, sequence=8, step=1300)
    bases = [forge.base_row(base, step=1200)]
    data = forge.part(raw[200:], rows, spans, head=head, bases=bases, raw_bytes=300)
    assert data == make_v2.make_later_part()[0] == (GOLDEN.parent / "v2" / part_file_name(0, 2)).read_bytes()
    assert BASE_DTYPE.itemsize == 32


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


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"version": 1}, "no valid head"),
        ({"base": 2}, "not in the table"),
        ({"base": 2**32 - 1}, "not in the table"),
        ({"base": 0}, "fill the payload|no chunk lies in a base|begins behind"),
        ({"offset": 4095}, "within its base"),
        ({"offset": 5000 - 128 - 199}, "within its base"),
        ({"offset": 2**64 - 100}, "within its base"),
        ({"bases": [forge.base_row(bytes(5000)), forge.base_row(b"\1" * 5001)]}, "no chunk lies in a base"),
        ({"bases": [forge.base_row(bytes(5000))] * 2}, "twice"),
        ({"bases": [forge.base_row(bytes(4223))]}, "impossible length"),
        ({"bases": [forge.base_row(bytes(5000), nbytes=2**63)]}, "impossible length"),
        ({"bases": [forge.base_row(bytes(5000), step=2**63)]}, "impossible step"),
        ({"bases": [forge.base_row(bytes(5000 + i)) for i in range(65)]}, "too many bases"),
    ],
)
def test_impossible_base(wrong: dict[str, object], text: str) -> None:
    with pytest.raises(CorruptFileError, match=text):
        PartReader(MemorySource(referring(**wrong)), where="part under test")


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


def test_base_names() -> None:
    name = base_file_name(3, 8, "0123456789abcdef" * 2)
    assert parse_base_file_name(name) == (3, 8, "0123456789abcdef" * 2) and parse_part_file_name(name) is None
    for wrong in (name.upper(), name + "x", name.replace("00003", "00008"), name.replace("-of-00008", "-of-000008")):
        assert parse_base_file_name(wrong) is None


def test_a_writer_that_was_not_told_does_not_refer() -> None:
    place = ChunkPlace(4096, EncodedChunk(0, b"", bytes(16), bytes(16)), 200, make_v2.BASE)
    with pytest.raises(FormatError, match="cannot be referred to"):
        started().add_reference(200, place)
    with pytest.raises(FormatError, match="cannot be referred to"):
        PartWriter(io.BytesIO(), make_v1.ATTEMPT, 0, refers=True).add_reference(200, replace(place, base=None))


# --- writer ----------------------------------------------------------------------------------------------------------


def test_chunk_payload_is_not_copied() -> None:
    addresses = []

    class Recorder:
        def write(self, buffer: memoryview | bytes) -> None:
            addresses.append(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])

    raw = np.arange(1000, dtype=np.uint8)
    writer = PartWriter(Recorder(), make_v1.ATTEMPT, 0)
    writer.add_chunk(raw.data, Chooser("none").encode_chunk(raw.data))
    assert addresses[1] == raw.__array_interface__["data"][0]


def test_summary() -> None:
    data, summary = make_v1.make_part(1)
    assert summary.nbytes == len(data)
    assert summary.digest == xxhash.xxh3_128_hexdigest(data)
    assert (summary.raw_bytes, len(summary.chunks), summary.encoded_bytes) == (2600, 2, data.index(b"DPPINDEX") - 4096)
    assert summary.index_digest == xxhash.xxh3_128_hexdigest(data[4096 + summary.encoded_bytes : -64])


def test_part_without_bytes() -> None:
    sink = io.BytesIO()
    summary = PartWriter(sink, make_v1.ATTEMPT, 1).finish(spans_of([]), b"{}")
    reader = PartReader(MemorySource(sink.getvalue()), where="empty")
    assert (reader.raw_bytes, len(reader.chunks), len(reader.spans), reader.meta) == (0, 0, 0, b"{}")
    assert reader.verify() == summary.digest
    assert reader.chunks_for(0, 0) == range(0)


def test_writer_takes_typed_memory() -> None:
    floats = np.arange(50, dtype=np.float32)
    sink = io.BytesIO()
    writer = PartWriter(sink, make_v1.ATTEMPT, 0)
    writer.add_chunk(floats.data, EncodedChunk(0, floats.data))
    writer.finish(spans_of(ONE_SPAN), b"")
    assert bytes(PartReader(MemorySource(sink.getvalue()), where="typed").read_chunk(0)) == floats.tobytes()


@pytest.mark.parametrize(
    ("raw", "encoded", "options"),
    [
        (RAW[:0], EncodedChunk(0, b""), {}),
        (RAW, EncodedChunk(0, RAW[:199]), {}),
        (RAW[:10], EncodedChunk(1, RAW), {}),
        (RAW, EncodedChunk(1, b""), {}),
        (RAW, EncodedChunk(3, RAW), {}),
        (RAW, EncodedChunk(0, RAW), {"flags": 2}),
        (RAW, EncodedChunk(0, RAW), {"flags": -1}),
        (RAW, EncodedChunk(0, RAW), {"dtype": "a" * 17}),
        (RAW, EncodedChunk(0, RAW), {"dtype": "é"}),
        (RAW, EncodedChunk(0, RAW), {"dtype": "a\0"}),
        (memoryview(bytes(64 * 1024**2 + 1)), EncodedChunk(1, b"x"), {}),
    ],
)
def test_writer_refuses_chunk(raw: memoryview, encoded: EncodedChunk, options: dict[str, object]) -> None:
    sink = io.BytesIO()
    writer = PartWriter(sink, make_v1.ATTEMPT, 0)
    with pytest.raises(FormatError, match="step 1200, part of rank 0"):
        writer.add_chunk(raw, encoded, **options)  # type: ignore[arg-type]
    assert len(sink.getvalue()) == 4096


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [(0, 0, 0, 199, 0)],
        [(0, 0, 0, 201, 0)],
        [(0, 0, 0, 200, 1)],
        [(0, 2, 0, 200, 0)],
        [(0, 0, 2**62 + 1, 200, 0)],
        [(0, 0, 0, 0, 0), (0, 0, 0, 200, 0)],
        [(0, 0, 0, 100, 0), (0, 0, 99, 100, 100)],
        [(0, 0, 100, 100, 0), (1, 0, 0, 50, 100), (0, 0, 51, 50, 150)],
    ],
)
def test_writer_refuses_spans_that_the_reader_would(rows: list[tuple[int, ...]]) -> None:
    with pytest.raises(FormatError, match="span"):
        started().finish(spans_of(rows), b"")


def test_same_bytes_of_leaves_in_different_tables_do_not_overlap() -> None:
    started().finish(spans_of([(0, 0, 0, 100, 0), (0, 1, 0, 100, 100)]), b"")  # no error
    with pytest.raises(FormatError, match="span"):  # as there is for the same table
        started().finish(spans_of([(0, 0, 0, 100, 0), (0, 0, 0, 100, 100)]), b"")


def test_writer_refuses_other_arrays_and_long_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FormatError, match="SPAN_DTYPE"):
        started().finish(np.zeros(1, dtype=np.uint64), b"")
    monkeypatch.setattr("deeppart.part.format.MAX_META_BYTES", 10)
    with pytest.raises(FormatError, match="meta"):
        started().finish(spans_of(ONE_SPAN), bytes(11))


@pytest.mark.parametrize("wrong", [{"step": -1}, {"sequence": 2**63}, {"lineage": "AB" * 16}, {"session": "ab"}])
def test_writer_refuses_impossible_attempt(wrong: dict[str, object]) -> None:
    with pytest.raises(FormatError, match=next(iter(wrong))):
        PartWriter(io.BytesIO(), replace(make_v1.ATTEMPT, **wrong), 0)  # type: ignore[arg-type]
    for rank in (-1, 2):
        with pytest.raises(FormatError, match="rank"):
            PartWriter(io.BytesIO(), make_v1.ATTEMPT, rank)


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
        writer = PartWriter(sink, make_v1.ATTEMPT, 0)
        writer.add_chunk(RAW, EncodedChunk(0, RAW))
        writer.finish(spans_of(ONE_SPAN), b"")
    if fails_at:
        with pytest.raises(FormatError, match="a write to it failed"):
            writer.add_chunk(RAW, EncodedChunk(0, RAW))
        assert sink.writes == fails_at + 1


def test_finished_is_finished() -> None:
    writer = started()
    writer.finish(spans_of(ONE_SPAN), b"")
    with pytest.raises(FormatError, match="finished"):
        writer.add_chunk(RAW, EncodedChunk(0, RAW))
    with pytest.raises(FormatError, match="finished"):
        writer.finish(spans_of(ONE_SPAN), b"")


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


# --- names -----------------------------------------------------------------------------------------------------------


def test_part_file_names() -> None:
    assert part_file_name(3, 8) == "part-00003-of-00008.dpp"
    for rank, world_size in [(0, 1), (3, 8), (99_999, 100_000), (1_234_567, 2_000_000)]:
        assert parse_part_file_name(part_file_name(rank, world_size)) == (rank, world_size)
    for name in [
        "part-00008-of-00008.dpp",
        "part-3-of-8.dpp",
        "part-000003-of-00008.dpp",
        "part-00003-of-00008.dpp.tmp",
        "part-00003-of-00008.dpp\n",
        "../part-00003-of-00008.dpp",
        "part-٠٠٠٠٣-of-00008.dpp",
        "",
    ]:
        assert parse_part_file_name(name) is None, name
