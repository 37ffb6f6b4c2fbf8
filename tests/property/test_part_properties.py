"""Any share, however cut and encoded, comes back; any damage to it does not come back as something else."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from deeppart.codec import Chooser, EncodedChunk, ZstdCodec
from deeppart.errors import CorruptFileError, NewerFormatError
from deeppart.model import Attempt, Manifest
from deeppart.model.compression import COMPRESSIONS
from deeppart.part import (
    SPAN_DTYPE,
    MemorySource,
    PartReader,
    PartSummary,
    PartWriter,
    decode_manifest,
    encode_manifest,
    part_file_name,
)
from deeppart.part.format import CHUNK_DTYPE
from tests.property.damage import damaged

HEX32 = st.binary(min_size=16, max_size=16).map(bytes.hex)
COUNTER = st.integers(0, 2**63 - 1)
#: Runs of one byte value: some chunks compress, some do not.
RAW = st.lists(st.one_of(st.binary(max_size=80), st.binary(min_size=1, max_size=1).map(lambda b: b * 300)), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def attempts(draw: st.DrawFn, most_ranks: int = 2**24) -> tuple[Attempt, int]:
    world_size = draw(st.integers(1, most_ranks))
    attempt = Attempt(draw(HEX32), draw(HEX32), draw(COUNTER), draw(COUNTER), world_size)
    return attempt, draw(st.integers(0, world_size - 1))


def cut(draw: st.DrawFn, length: int) -> list[tuple[int, int]]:
    """Ranges without gap that cover ``length`` bytes."""
    inner = draw(st.sets(st.integers(1, length - 1), max_size=6)) if length > 1 else set()
    borders = [0, *sorted(inner), length]
    return list(itertools.pairwise(borders)) if length else []


class Case(NamedTuple):
    """What goes into a part and the file that came out."""

    attempt: Attempt
    rank: int
    raw: bytes
    dtypes: list[str]
    flags: list[int]
    spans: np.ndarray
    meta: bytes
    data: bytes
    summary: PartSummary


@st.composite
def cases(draw: st.DrawFn) -> Case:
    attempt, rank = draw(attempts())
    raw = b"".join(draw(RAW))
    cuts = cut(draw, len(raw))
    tags = st.text("abcXYZ019_.", max_size=16)
    dtypes, flags = [draw(tags) for _ in cuts], [draw(st.integers(0, 1)) for _ in cuts]
    # far apart in their leaves, so that spans of one leaf do not overlap
    leaves, tables = st.integers(0, 2**32 - 1), st.integers(0, 1)
    starts = draw(st.permutations([0, 2**32, 2**40, 2**61, 5000, 9000, 2**62]))
    rows = [
        (draw(leaves), draw(tables), draw(st.integers(0, 2**64 - 1)), starts[i], stop - start, start)
        for i, (start, stop) in enumerate(cut(draw, len(raw)))
    ]
    spans = np.array(rows, dtype=SPAN_DTYPE)
    meta = draw(st.binary(max_size=50))
    sink = io.BytesIO()
    writer = PartWriter(sink, attempt, rank)
    chooser = Chooser(draw(st.sampled_from([*(each for each in COMPRESSIONS if each != "auto"), "zstd:-1"])))
    for (start, stop), dtype, flag in zip(cuts, dtypes, flags, strict=True):
        chunk = memoryview(raw)[start:stop]
        encoded = replace(chooser.encode_chunk(chunk, dtype), raw_digest=xxh3_128_digest(chunk))
        writer.add_chunk(len(chunk), encoded, dtype=dtype, flags=flag)
    summary = writer.finish(spans, meta)
    return Case(attempt, rank, raw, dtypes, flags, spans, meta, sink.getvalue(), summary)


@given(cases())
def test_round_trip(case: Case) -> None:
    reader = PartReader(
        MemorySource(case.data),
        where="case",
        expected_attempt=case.attempt,
        expected_rank=case.rank,
        expected_index_digest=case.summary.index_digest,
    )
    assert b"".join(reader.read_chunk(i) for i in range(len(reader.chunks))) == case.raw
    assert (reader.attempt, reader.rank, reader.meta) == (case.attempt, case.rank, case.meta)
    assert reader.spans.tolist() == case.spans.tolist()
    assert reader.chunks["dtype"].tolist() == [dtype.encode() for dtype in case.dtypes]
    assert reader.chunks["flags"].tolist() == case.flags
    assert reader.verify(expected_digest=case.summary.digest) == case.summary.digest
    record = case.summary.record(case.attempt, case.rank)
    assert (record.file, record.nbytes) == (part_file_name(case.rank, case.attempt.world_size), len(case.data))


@given(cases(), st.data())
def test_damage_never_comes_back_as_data(case: Case, data: st.DataObject) -> None:
    bad = data.draw(damaged(case.data))
    try:
        reader = PartReader(MemorySource(bad), where="damaged")
        raw = b"".join(reader.read_chunk(i) for i in range(len(reader.chunks)))
        reader.verify()
    except (CorruptFileError, NewerFormatError):
        assert bad != case.data
    else:
        assert (raw, reader.meta, reader.rank, reader.attempt) == (case.raw, case.meta, case.rank, case.attempt)
        assert bad == case.data


@given(st.binary(max_size=200), st.integers(0, 400))
def test_zstd_decodes_noise_to_nothing_else(noise: bytes, raw_length: int) -> None:
    for encoded in (noise, b"\x28\xb5\x2f\xfd" + noise):
        try:
            raw = ZstdCodec().decode(memoryview(encoded), raw_length)
        except CorruptFileError:
            continue
        assert len(raw) == raw_length


@given(attempts(most_ranks=40), st.dictionaries(st.text(max_size=8), JSON, max_size=5))
def test_manifest_round_trip(drawn: tuple[Attempt, int], structure: dict[str, object]) -> None:
    attempt, _ = drawn
    summary = PartSummary(5000, 10, 10, 4, np.zeros(1, CHUNK_DTYPE), (), "ab" * 16, "cd" * 16)
    parts = tuple(summary.record(attempt, rank) for rank in range(attempt.world_size))
    manifest = Manifest(attempt, "2026-11-21T04:05:06Z", "deeppart 0", parts, structure)
    data = encode_manifest(manifest)
    assert decode_manifest(data, where="round trip") == manifest
    assert encode_manifest(decode_manifest(data, where="round trip")) == data


@given(st.binary(max_size=300))
def test_noise_is_no_manifest(noise: bytes) -> None:
    for data in (noise, b"deeppart-manifest " + noise):
        with pytest.raises((CorruptFileError, NewerFormatError)):
            decode_manifest(data, where="noise")


def test_chunk_of_every_codec_shares_nothing_it_should_not() -> None:
    """A decoded zstd chunk outlives the buffer it was read into."""
    raw = memoryview(bytes(1000))
    sink = io.BytesIO()
    writer = PartWriter(sink, Attempt("0" * 32, "1" * 32, 0, 0, 1), 0)
    writer.add_chunk(len(raw), EncodedChunk(1, ZstdCodec().encode(raw), raw_digest=xxh3_128_digest(raw)))
    writer.finish(np.array([(0, 0, 0, 0, 1000, 0)], dtype=SPAN_DTYPE), b"")
    scratch, back = bytearray(1000), bytearray(b"\xaa" * 1000)
    PartReader(MemorySource(sink.getvalue()), where="shared").read_into(0, memoryview(back), memoryview(scratch))
    scratch[:] = b"\xff" * 1000
    assert bytes(back) == bytes(1000)
