"""Parity files: what is written is read, golden bytes, and damage of every kind, which never passes for parity."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given, settings

from deeppart.errors import CorruptFileError, FormatError, NewerFormatError, StorageError
from deeppart.model import Attempt, ParityIdentity, ParityMember
from deeppart.nodes.erasure import ReedSolomon
from deeppart.part import (
    FileSource,
    MemorySource,
    ParityReader,
    ParityWriter,
    is_parity_file_name,
    parity_file_name,
    set_id,
    stripes_of,
)
from tests.golden import make_parity_v1, make_v1
from tests.property.damage import damaged

IDENTITY = make_parity_v1.IDENTITY
GOLDEN = (make_parity_v1.GOLDEN / make_parity_v1.NAME).read_bytes()
INDEX_OFFSET = 4096 + len(make_parity_v1.PAYLOAD)
FORMAT_ERRORS = (CorruptFileError, NewerFormatError)
forged = make_parity_v1.forge_parity


def opened(data: bytes | bytearray) -> ParityReader:
    return ParityReader(MemorySource(data), where="share under test")


def blocks_of(reader: ParityReader) -> list[bytes | None]:
    """All blocks in file order; None for one whose digest does not hold."""
    blocks: list[bytes | None] = []
    for row in range(reader.stripes.rows):
        for index in range(reader.stripes.tolerate):
            memory = np.empty(reader.stripes.length(row), dtype=np.uint8)
            good = reader.read_block(row, index, memory)
            assert reader.block_is_good(row, index, memory) is good
            blocks.append(memory.tobytes() if good else None)
    return blocks


def refused(data: bytes | bytearray) -> Exception:
    """Open and read everything; return the error, which must be one of the format's and must say where."""
    with pytest.raises(FORMAT_ERRORS) as caught:
        opened(data).verify()
    assert "share under test" in str(caught.value)
    return caught.value


# --- golden -----------------------------------------------------------------------------------------------------------


def test_golden_parity_reads_as_written() -> None:
    with FileSource(make_parity_v1.GOLDEN / make_parity_v1.NAME) as source:
        reader = ParityReader(source, where="golden")
        reader.verify()
        blocks = blocks_of(reader)
    assert reader.identity == IDENTITY and parity_file_name(reader.identity) == make_parity_v1.NAME
    assert reader.index_digest == "af9d28205ce4e28e91d8a519e04add72"
    assert reader.stripes == stripes_of(IDENTITY) and reader.digests.shape == (3, 2, 4, 16)
    assert b"".join(block or b"" for block in blocks) == make_parity_v1.PAYLOAD
    assert xxhash.xxh3_128_hexdigest(GOLDEN) == "4efd8dc5b5dd11ea1cf14e7448288dee"


def test_library_writes_what_the_document_says() -> None:
    """``forge`` follows docs/format.md without using the library, field arithmetic included."""
    data, index_digest = make_parity_v1.write_parity()
    assert data == GOLDEN == forged()
    assert index_digest == GOLDEN[-32:-16].hex()


def test_golden_parity_and_the_other_part_give_the_lost_part_back() -> None:
    """The file is of use by itself: which block of which stripe is where, is all in the layout."""
    reader, stripes, lost = opened(GOLDEN), stripes_of(IDENTITY), 0
    code = ReedSolomon(stripes.data_blocks, stripes.tolerate)
    rebuilt = b""
    for row in range(stripes.rows):
        length = stripes.length(row)
        for block in range(stripes.data_blocks):
            stripe = stripes.stripe_of(lost, block)
            (index,) = [j for j in range(stripes.tolerate) if stripes.kept_stripe(IDENTITY.place, j) == stripe]
            parity = np.empty(length, dtype=np.uint8)
            assert reader.read_block(row, index, parity)
            (other,) = [i for i in range(stripes.data_blocks) if i != block]
            start = stripes.start(row, other)
            data = make_parity_v1.PARTS[stripes.source(stripe, other)][start : start + length].ljust(length, b"\0")
            out = np.empty(length, dtype=np.uint8)
            rows = [other, stripes.data_blocks + index]
            code.rebuild([np.frombuffer(data, dtype=np.uint8), parity], rows, [block], [out])
            rebuilt += out.tobytes()
    part = make_parity_v1.PARTS[lost]
    assert rebuilt == part.ljust(len(rebuilt), b"\0") and part == make_v1.make_part(0)[0]


# --- writing and reading back -----------------------------------------------------------------------------------------


@st.composite
def identities(draw: st.DrawFn) -> ParityIdentity:
    count = draw(st.integers(2, 9))
    hex32 = st.binary(min_size=16, max_size=16).map(bytes.hex)
    counter = st.integers(0, 2**63 - 1)
    world_size = draw(st.integers(count, 2**24))
    attempt = Attempt(draw(hex32), draw(hex32), draw(counter), draw(counter), world_size)
    parts = draw(st.sets(st.integers(0, world_size - 1), min_size=1, max_size=count))
    members = [ParityMember(part, draw(st.integers(4224, 9000)), draw(hex32)) for part in parts]
    members += [ParityMember(None, 0, "")] * (count - len(parts))
    block_bytes = 64 * draw(st.integers(4, 100))
    place, tolerate = draw(st.integers(0, count - 1)), draw(st.integers(1, count - 1))
    return ParityIdentity(attempt, tuple(draw(st.permutations(members))), tolerate, block_bytes, place)


def rows_of(identity: ParityIdentity, seed: int) -> list[tuple[list[npt.NDArray[np.uint8]], npt.NDArray[np.uint8]]]:
    """Blocks of noise with digests of their own, and noise for the digests of all other blocks of their stripes."""
    stripes, noise = stripes_of(identity), np.random.default_rng(seed)
    rows = []
    for row in range(stripes.rows):
        blocks = list(noise.integers(0, 256, (stripes.tolerate, stripes.length(row)), dtype=np.uint8))
        digests = noise.integers(0, 256, (stripes.tolerate, stripes.members, 16), dtype=np.uint8)
        for index, block in enumerate(blocks):
            digests[index, stripes.data_blocks + index] = list(xxhash.xxh3_128_digest(block.data))
        rows.append((blocks, digests))
    return rows


def written(identity: ParityIdentity, seed: int = 0) -> bytes:
    sink = io.BytesIO()
    writer = ParityWriter(sink, identity)
    for blocks, digests in rows_of(identity, seed):
        writer.add_row(blocks, digests)
    assert writer.finish() == sink.getvalue()[-32:-16].hex()
    return sink.getvalue()


@given(identities(), st.integers(0, 2**32))
def test_round_trip(identity: ParityIdentity, seed: int) -> None:
    reader = opened(written(identity, seed))
    reader.verify()
    rows = rows_of(identity, seed)
    assert reader.identity == identity and reader.stripes == stripes_of(identity)
    assert blocks_of(reader) == [block.tobytes() for blocks, _ in rows for block in blocks]
    assert reader.digests.tolist() == [digests.tolist() for _, digests in rows]


@given(identities(), identities())
def test_names_tell_sets_and_places_apart(one: ParityIdentity, other: ParityIdentity) -> None:
    """A file is taken for what its name says only if its identity gives that name (levels/node.py)."""
    moved = replace(one, place=(one.place + 1) % len(one.members))
    assert set_id(moved) == set_id(one) and parity_file_name(moved) != parity_file_name(one)
    assert all(is_parity_file_name(parity_file_name(identity)) for identity in (one, other, moved))
    others = [
        other,
        replace(one, attempt=replace(one.attempt, step=one.attempt.step ^ 1)),
        replace(one, attempt=replace(one.attempt, sequence=one.attempt.sequence ^ 1)),
        replace(one, block_bytes=one.block_bytes + 64),
        replace(one, members=(*one.members, ParityMember(None, 0, ""))),
        replace(one, members=(*one.members[1:], one.members[0])),
    ]
    for different in others:
        same = replace(different, place=0) == replace(one, place=0)
        assert (set_id(different) == set_id(one)) is same


@pytest.mark.parametrize(
    "name",
    [
        "",
        "parity-0123456789abcdef-001-of-004.dpp",
        "parity-0123456789abcde-001-of-004.dpy",
        "parity-0123456789ABCDEF-001-of-004.dpy",
        "parity-0123456789abcdef-1-of-4.dpy",
        "parity-0123456789abcdef-001-of-004.dpy\n",
        "../parity-0123456789abcdef-001-of-004.dpy",
        ".parity-0123456789abcdef-001-of-004.dpy.tmp",
        "parity-0123456789abcdef-\u0661\u0662\u0663-of-004.dpy",
        "part-00000-of-00002.dpp",
    ],
)
def test_names_that_are_not_of_parity_files(name: str) -> None:
    assert not is_parity_file_name(name)


def test_errors_of_the_sink_pass_through() -> None:
    class Full:
        def __init__(self, room: int) -> None:
            self.room = room

        def write(self, buffer: memoryview | bytes) -> None:
            self.room -= len(buffer)
            if self.room < 0:
                raise StorageError("no room")

    for room in range(0, len(GOLDEN), 300):
        sink = Full(room)
        with pytest.raises(StorageError, match="no room"):
            writer = ParityWriter(sink, IDENTITY)
            for blocks, digests in rows_of(IDENTITY, 0):
                writer.add_row(blocks, digests)
            writer.finish()


def test_blocks_are_not_copied() -> None:
    addresses = []

    class Recorder:
        def write(self, buffer: memoryview | bytes) -> None:
            addresses.append(np.frombuffer(buffer, np.uint8).__array_interface__["data"][0])

    writer = ParityWriter(Recorder(), IDENTITY)
    blocks, digests = rows_of(IDENTITY, 0)[0]
    writer.add_row(blocks, digests)
    assert addresses[1:] == [block.__array_interface__["data"][0] for block in blocks]


# --- what the writer refuses ------------------------------------------------------------------------------------------


def changed(**wrong: Any) -> ParityIdentity:
    """The golden identity with other fields; those of the attempt by their names."""
    of_attempt = {name: wrong.pop(name) for name in list(wrong) if hasattr(IDENTITY.attempt, name)}
    return replace(IDENTITY, attempt=replace(IDENTITY.attempt, **of_attempt), **wrong)


def with_member(part: Any, nbytes: Any = 5000, index_digest: Any = "ab" * 16) -> ParityIdentity:
    """The golden identity with another first member."""
    return changed(members=(ParityMember(part, nbytes, index_digest), *IDENTITY.members[1:]))


NOBODY = ParityMember(None, 0, "")
IMPOSSIBLE = [
    (changed(sequence=-1), "sequence"),
    (changed(sequence=2**63), "sequence"),
    (changed(step=-1), "step"),
    (changed(step=2**63), "step"),
    (changed(step=1.0), "step"),
    (changed(lineage="AB" * 16), "lineage"),
    (changed(session="ab"), "session"),
    (changed(world_size=0), "world"),
    (changed(world_size=2**24 + 1), "world_size"),
    (changed(world_size=1), "part 1"),
    (changed(tolerate=0), "of which 0 may be lost"),
    (changed(tolerate=-1), "of which -1 may be lost"),
    (changed(tolerate=4), "of which 4 may be lost"),
    (changed(place=-1), "member -1 of 4"),
    (changed(place=4), "member 4 of 4"),
    (changed(members=()), "of 0"),
    (changed(members=IDENTITY.members[:1], tolerate=1, place=0), "member 0 of 1"),
    (changed(members=IDENTITY.members[:1] + (NOBODY,) * 255), "of 256"),
    (changed(members=(NOBODY,) * 4), "no part"),
    (changed(members=IDENTITY.members[:1] * 2 + (NOBODY,) * 2), "a part twice"),
    (changed(block_bytes=0), "blocks of 0 bytes"),
    (changed(block_bytes=-64), "blocks of -64 bytes"),
    (changed(block_bytes=63), "blocks of 63 bytes"),
    (changed(block_bytes=1000), "blocks of 1000 bytes"),
    (changed(block_bytes=(64 << 20) + 64), "blocks of 67108928 bytes"),
    (with_member(-1), "part -1"),
    (with_member(2), "part 2"),
    (with_member("0"), "part '0'"),
    (with_member(True), "part True"),
    (with_member(0, 4223), "4223 bytes"),
    (with_member(0, 0, ""), "0 bytes"),
    (with_member(0, -5000), "-5000 bytes"),
    (with_member(0, 2**60), "bytes"),
    (with_member(0, 5000.0), "5000.0 bytes"),
    (with_member(0, 5000, ""), "part 0"),
    (with_member(0, 5000, "AB" * 16), "part 0"),
    (with_member(0, 5000, "ab" * 15), "part 0"),
    (with_member(0, 5000, None), "part 0"),
    (with_member(None, 5000), "part None"),
    (with_member(None, 0), "part None"),
    (with_member(None, 1, ""), "part None of 1 bytes"),
    (replace(with_member(0, 2**40), block_bytes=64), "more than the digest table can hold"),
]


@pytest.mark.parametrize(("identity", "text"), IMPOSSIBLE, ids=[text for _, text in IMPOSSIBLE])
def test_writer_refuses_impossible_identity(identity: ParityIdentity, text: str) -> None:
    sink = io.BytesIO()
    with pytest.raises(FormatError, match="cannot be written") as caught:
        ParityWriter(sink, identity)
    assert text in str(caught.value) and sink.getvalue() == b""


def test_limits_themselves_are_possible() -> None:
    most = changed(world_size=2**24, sequence=2**63 - 1, step=2**63 - 1, block_bytes=64 << 20)
    many = tuple(ParityMember(part, 4224, "0" * 32) for part in range(255))
    for identity in (most, replace(most, members=many, tolerate=254, place=254), with_member(0, 4224), with_member(0)):
        assert opened(written(identity)).identity == identity


def test_writer_refuses_rows_of_another_shape() -> None:
    rows = rows_of(IDENTITY, 0)
    (one, other), digests = rows[0]
    for blocks, table in (
        ([one], digests),
        ([one, other, other], digests),
        ([], digests),
        ([one, other[:-1]], digests),
        ([one[:64], other[:64]], digests),
        (rows[2][0], digests),
        ([one, other], digests[:1]),
        ([one, other], digests[:, :3]),
        ([one, other], digests[:, :, :8]),
        ([one, other], digests.reshape(-1)),
    ):
        sink = io.BytesIO()
        writer = ParityWriter(sink, IDENTITY)
        with pytest.raises(FormatError, match="another shape than its set"):
            writer.add_row(blocks, table)
        assert len(sink.getvalue()) == 4096


def test_writer_refuses_missing_rows_and_one_too_many() -> None:
    writer, rows = ParityWriter(io.BytesIO(), IDENTITY), rows_of(IDENTITY, 0)
    for number, (blocks, digests) in enumerate(rows):
        with pytest.raises(FormatError, match=f"expected: 3 rows\n.*{number} rows"):
            writer.finish()
        writer.add_row(blocks, digests)
    with pytest.raises(FormatError, match="another shape than its set"):
        writer.add_row(*rows[2])
    writer.finish()


def test_writer_refuses_an_empty_row_behind_the_last() -> None:
    """Where the rows fit exactly, the next one would begin with nothing left: blocks of no bytes are none."""
    identity = with_member(0, 3 * 2048)
    writer, rows = ParityWriter(io.BytesIO(), identity), rows_of(identity, 0)
    for blocks, digests in rows:
        writer.add_row(blocks, digests)
    with pytest.raises(FormatError, match="another shape than its set"):
        writer.add_row([np.empty(0, dtype=np.uint8)] * 2, rows[0][1])


# --- without new digests: what storage does ---------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0xFF, 0x01, 0x80])
def test_every_flipped_byte_is_found(mask: int) -> None:
    damaged = bytearray(GOLDEN)
    for i in range(len(damaged)):
        damaged[i] ^= mask
        assert type(refused(damaged)) is CorruptFileError, i
        damaged[i] ^= mask
    opened(damaged).verify()


def test_a_flipped_byte_of_the_payload_costs_its_block_and_no_other() -> None:
    """A rebuild uses the good blocks of a file with bad ones."""
    damaged, sound = bytearray(GOLDEN), blocks_of(opened(GOLDEN))
    ends = np.cumsum([len(block or b"") for block in sound])
    for i in range(4096, INDEX_OFFSET, 7):
        damaged[i] ^= 1
        bad = int(np.searchsorted(ends, i - 4096, side="right"))
        expected = [None if number == bad else block for number, block in enumerate(sound)]
        reader = opened(damaged)
        assert blocks_of(reader) == expected, i
        row, index = divmod(bad, 2)
        start = 4096 + int(ends[bad]) - len(sound[bad] or b"")
        with pytest.raises(CorruptFileError) as caught:
            reader.verify()
        assert f"row {row}, block {index} (bytes {start} to {4096 + ends[bad]})" in str(caught.value)
        damaged[i] ^= 1


def test_every_truncation_is_found() -> None:
    for length in range(len(GOLDEN)):
        refused(GOLDEN[:length])
        # the file keeps its length but its end was never written
        refused(GOLDEN[:length].ljust(len(GOLDEN), b"\xee"))


def test_appended_bytes_are_found() -> None:
    for more in (b"\0", b"garbage", bytes(4096), GOLDEN[-64:], GOLDEN):
        refused(GOLDEN + more)


def test_mixed_files_are_found() -> None:
    """A header and payload of one file with index and footer of another: every digest by itself holds."""
    other = forged(head={"step": 1201})
    mixed = GOLDEN[:INDEX_OFFSET] + other[INDEX_OFFSET:]
    assert len(mixed) == len(other) == len(GOLDEN)
    assert "not this one's" in str(refused(mixed))


def test_other_files_are_not_parity_and_the_other_way_round() -> None:
    from deeppart.part import PartReader

    assert "not a deeppart parity file" in str(refused(make_parity_v1.PARTS[0]))
    with pytest.raises(CorruptFileError, match="not a deeppart part file"):
        PartReader(MemorySource(GOLDEN), where="share under test")


class Liar(MemorySource):
    """Gives fewer bytes than it was asked for."""

    def read_at(self, offset: int, length: int) -> memoryview:
        return super().read_at(offset, length)[: length - 1]


def test_short_answers_of_a_source_are_found() -> None:
    with pytest.raises(CorruptFileError, match="share under test"):
        ParityReader(Liar(GOLDEN), where="share under test")


def test_a_file_that_becomes_shorter_while_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "share"
    path.write_bytes(GOLDEN)
    with FileSource(path) as source:
        reader = ParityReader(source, where=str(path))
        os.truncate(path, 5000)
        block = np.empty(1024, dtype=np.uint8)
        with pytest.raises(CorruptFileError, match="ends before"):
            reader.read_block(0, 1, block)
        with pytest.raises(CorruptFileError, match="ends before"):
            reader.verify()


def test_a_file_that_cannot_be_read() -> None:
    class Broken(MemorySource):
        refuses_from = 0

        def read_at(self, offset: int, length: int) -> memoryview:
            if offset >= self.refuses_from:
                raise StorageError("input/output error", errno=5)
            return super().read_at(offset, length)

    with pytest.raises(StorageError, match="input/output error"):
        ParityReader(Broken(GOLDEN), where="share under test")
    source = Broken(GOLDEN)
    source.refuses_from = len(GOLDEN)
    reader = ParityReader(source, where="share under test")
    source.refuses_from = 4096
    with pytest.raises(StorageError, match="input/output error"):
        reader.verify()
    with pytest.raises(StorageError, match="input/output error"):
        reader.read_block(0, 0, np.empty(1024, dtype=np.uint8))


# --- with new digests: what an evil or mad writer does ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"magic": b"\x89DPY\n\n\x1a\n"}, "not a deeppart parity file"),
        ({"magic": b"\x89DPP\r\n\x1a\n"}, "not a deeppart parity file"),
        ({"version": 0}, "not one of parity version 1"),
        ({"length": 8192}, "not one of parity version 1"),
        ({"padding": b"\0\0\1"}, "not one of parity version 1"),
        ({"padding": bytes(3975) + b"\1"}, "not one of parity version 1"),
        ({"sequence": 2**63}, "sequence"),
        ({"step": 2**64 - 1}, "step"),
        ({"world_size": 0}, "world"),
        ({"world_size": 1}, "part 1"),
        ({"world_size": 2**24 + 1}, "world_size"),
        ({"members": 3}, "different sets"),
        ({"members": 2**32 - 1}, "different sets"),
        ({"longest": 4800}, "different sets"),
        ({"longest": 2**64 - 1}, "different sets"),
        ({"tolerate": 0}, "of which 0 may be lost"),
        ({"tolerate": 4}, "of which 4 may be lost"),
        ({"tolerate": 2**32 - 1}, "may be lost"),
        ({"tolerate": 1}, "different sets"),
        ({"place": 4}, "member 4 of 4"),
        ({"place": 2**32 - 1}, "of 4"),
        ({"block_bytes": 0}, "blocks of 0 bytes"),
        ({"block_bytes": 1}, "blocks of 1 bytes"),
        ({"block_bytes": 2**64 - 64}, "blocks of"),
        ({"block_bytes": 64}, "different sets"),
        ({"block_bytes": 2048}, "different sets"),
    ],
)
def test_impossible_header(wrong: dict[str, Any], text: str) -> None:
    error = refused(forged(head=wrong))
    assert text in str(error)
    assert type(error) is CorruptFileError


def test_newer_version_is_told_from_damage() -> None:
    error = refused(forged(head={"version": 3}))
    assert type(error) is NewerFormatError
    assert "version 3" in str(error) and "version 1" in str(error) and "newer deeppart" in str(error)


@pytest.mark.parametrize(
    "wrong",
    [
        {"head": {"set_id": "0" * 16}},
        {"head": {"id_padding": b"\1" + bytes(7)}},
        {"index_reserved": b"\1" + bytes(31)},
        {"index_reserved": bytes(31) + b"\1"},
    ],
)
def test_nothing_may_stand_where_nothing_is_read(wrong: dict[str, Any]) -> None:
    """Reserved bytes are zero, and a reader refuses anything else: so that they can be given a meaning."""
    assert type(refused(forged(**wrong))) is CorruptFileError


@pytest.mark.parametrize(
    "wrong",
    [
        {"footer_magic": b"DPPFOOTX"},
        {"footer_reserved": b"\1" + bytes(7)},
        {"file_length": 0},
        {"file_length": 2**64 - 1},
        {"index_offset": 0},
        {"index_offset": 4095},
        {"index_offset": INDEX_OFFSET - 1},
        {"index_offset": 2**64 - 1},
        {"index_length": 0},
        {"index_length": 63},
        {"index_length": 2**64 - 1},
        {"index_offset": INDEX_OFFSET + 1, "index_length": len(GOLDEN) - INDEX_OFFSET - 65},
        # adds up, but modulo 2**64 only
        {"index_offset": INDEX_OFFSET + 2**63, "index_length": 2**63 + len(GOLDEN) - INDEX_OFFSET - 64},
    ],
)
def test_impossible_footer(wrong: dict[str, Any]) -> None:
    assert type(refused(forged(**wrong))) is CorruptFileError


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"index_magic": b"DPPINDEX"}, "not one of a parity file"),
        ({"header_digest": bytes(8)}, "not this one's"),
        ({"members_length": 0}, "not one of a parity file"),
        ({"members_length": 2**64 - 1}, "not one of a parity file"),
        ({"table_length": 383}, "not one of a parity file"),
        ({"table_length": 2**64 - 1}, "not one of a parity file"),
        # adds up, but not to the members and the table that are there
        ({"members_length": 0, "table_length": 384 + len(json.dumps(make_parity_v1.MEMBERS))}, "cannot be read"),
        ({"members": make_parity_v1.MEMBERS, "digests": b""}, "another length than its set"),
        ({"digests": make_parity_v1.DIGESTS[:-1]}, "another length than its set"),
        ({"digests": make_parity_v1.DIGESTS[:-16]}, "another length than its set"),
        ({"digests": make_parity_v1.DIGESTS * 2}, "another length than its set"),
        ({"payload": b""}, "another length than its set"),
        ({"payload": make_parity_v1.PAYLOAD[:-64]}, "another length than its set"),
        ({"payload": make_parity_v1.PAYLOAD + bytes(64)}, "another length than its set"),
    ],
)
def test_impossible_index(wrong: dict[str, Any], text: str) -> None:
    error = refused(forged(**wrong))
    assert text in str(error)
    assert type(error) is CorruptFileError


def members_with(**wrong: Any) -> list[dict[str, Any]]:
    """The golden members with other fields in the first."""
    return [{**make_parity_v1.MEMBERS[0], **wrong}, *make_parity_v1.MEMBERS[1:]]


WITHOUT_PART = {"part": None, "nbytes": 0, "index_digest": ""}


@pytest.mark.parametrize(
    ("members", "text"),
    [
        (b"", "cannot be read"),
        (b"[", "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"null", "cannot be read"),
        (b"7", "cannot be read"),
        (b'"part"', "cannot be read"),
        (b"[1, 2, 3, 4]", "cannot be read"),
        (b"[[]]", "cannot be read"),
        (b"[null]", "cannot be read"),
        (b'[["part", "nbytes", "index_digest"]]', "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b'[{"part": ' + b"9" * 5000 + b"}]", "cannot be read"),
        (b"[]", "of 0"),
        (b"{}", "of 0"),
        (make_parity_v1.MEMBERS[:3], "different sets"),
        ([*make_parity_v1.MEMBERS, WITHOUT_PART], "different sets"),
        (make_parity_v1.MEMBERS[1:], "different sets"),
        (members_with(more=1), "cannot be read"),
        ([{"part": 0, "nbytes": 4801}], "cannot be read"),
        (members_with(part=None), "part None"),
        (members_with(part=-1), "part -1"),
        (members_with(part=1), "a part twice"),
        (members_with(part=2), "part 2"),
        (members_with(part=0.0), "part 0.0"),
        (members_with(part=False), "part False"),
        (members_with(part="0"), "part '0'"),
        (members_with(part=[0] * 1000), "a list of 1000"),
        (members_with(part="\ud800" * 1000), "part"),
        (members_with(part=10**4000), "part 1"),
        (members_with(nbytes=4800), "different sets"),
        (members_with(nbytes=4223), "4223 bytes"),
        (members_with(nbytes=2**60), "bytes"),
        (members_with(nbytes=-1), "-1 bytes"),
        (members_with(nbytes=4801.0), "4801.0 bytes"),
        (members_with(nbytes=float("inf")), "Infinity"),
        (members_with(nbytes=float("nan")), "NaN"),
        (members_with(nbytes=None), "None bytes"),
        (members_with(nbytes={}), "a dict of 0"),
        (members_with(index_digest="AB" * 16), "part 0"),
        (members_with(index_digest=5), "part 0"),
        (members_with(index_digest=""), "part 0"),
        ([WITHOUT_PART] * 4, "no part"),
        ([*make_parity_v1.MEMBERS[:3], {**WITHOUT_PART, "nbytes": 1}], "part None of 1 bytes"),
        ([*make_parity_v1.MEMBERS[:3], {**WITHOUT_PART, "index_digest": "ab" * 16}], "part None"),
        pytest.param(
            [*make_parity_v1.MEMBERS[:3], {**WITHOUT_PART, "nbytes": 0.0}],
            "part None of 0.0 bytes",
        ),
        pytest.param(
            [*make_parity_v1.MEMBERS[:3], {**WITHOUT_PART, "nbytes": False}],
            "part None of False bytes",
        ),
    ],
)
def test_impossible_members(members: Any, text: str) -> None:
    error = refused(forged(members=members))
    assert text in str(error) and len(str(error)) < 1000
    assert type(error) is CorruptFileError


def test_a_set_with_more_digests_than_there_may_be_is_refused_before_memory_is_taken() -> None:
    members = members_with(nbytes=2**50)
    error = refused(forged(members=members, head={"block_bytes": 64, "longest": 2**50}))
    assert "more than the digest table can hold" in str(error)


def test_an_index_longer_than_there_may_be_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deeppart.part.parity.MAX_DIGEST_TABLE_BYTES", 100)
    assert "too long" in str(refused(GOLDEN))


def test_digests_that_do_not_belong_to_the_blocks() -> None:
    """Each table row has the digests of a whole stripe; that of the block itself stands behind those of the data."""
    for row, index in ((0, 0), (2, 1)):
        table = np.frombuffer(make_parity_v1.DIGESTS, dtype=np.uint8).reshape(3, 2, 4, 16).copy()
        table[row, index, 2 + index] ^= 1
        reader = opened(forged(digests=table.tobytes()))
        bad = [number for number, block in enumerate(blocks_of(reader)) if block is None]
        assert bad == [2 * row + index]
        assert f"row {row}, block {index}" in str(refused(forged(digests=table.tobytes())))


# --- anything at all --------------------------------------------------------------------------------------------------


def never_other_bytes(data: bytes | bytearray) -> bool:
    """Open and read: the documented errors and no other, and only blocks whose digest holds. Whether it was opened."""
    try:
        reader = opened(data)
    except FORMAT_ERRORS:
        return False
    blocks = blocks_of(reader)
    for number, block in enumerate(blocks):
        row, index = divmod(number, reader.stripes.tolerate)
        expected = reader.digests[row, index, reader.stripes.data_blocks + index].tobytes()
        assert block is None or xxhash.xxh3_128_digest(block) == expected
    if None in blocks:
        with pytest.raises(CorruptFileError):
            reader.verify()
    else:
        reader.verify()
    return True


@given(st.binary(max_size=300), st.sampled_from([0, 8, 4096, INDEX_OFFSET]), st.booleans())
def test_noise_is_no_parity(noise: bytes, start: int, whole: bool) -> None:
    data = GOLDEN[:start] + noise * (1 if whole else 40)
    assert not never_other_bytes(data)
    assert not never_other_bytes(data + GOLDEN[-64:])


@given(identities(), st.data())
def test_damage_never_comes_back_as_parity(identity: ParityIdentity, data: st.DataObject) -> None:
    sound = written(identity)
    bad = data.draw(damaged(sound, near_the_end=700))
    if never_other_bytes(bad):
        reader, whole = opened(bad), opened(sound)
        assert reader.identity == identity and reader.digests.tolist() == whole.digests.tolist()
        assert all(one in (None, other) for one, other in zip(blocks_of(reader), blocks_of(whole), strict=True))
        assert (None in blocks_of(reader)) is (bad != sound)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def near(right: int, most: int) -> st.SearchStrategy[int]:
    """Numbers around the right one, round ones, and any."""
    around = [right + by for by in (-64, -16, -1, 1, 16, 64)]
    fixed = [number for number in (*around, 0, 1, 2, 3, 64, 128, 4224, 2**31, most) if 0 <= number <= most]
    return st.sampled_from(fixed) | st.integers(0, most)


TABLE, TEXT = len(make_parity_v1.DIGESTS), len(json.dumps(make_parity_v1.MEMBERS))
HEAD = {
    "world_size": near(2, 2**32 - 1),
    "members": near(4, 2**32 - 1),
    "tolerate": near(2, 2**32 - 1),
    "place": near(2, 2**32 - 1),
    "block_bytes": near(1024, 2**64 - 1),
    "longest": near(4801, 2**64 - 1),
}
FILE = {
    "digests": near(TABLE, 2**12).map(bytes),
    "payload": near(len(make_parity_v1.PAYLOAD), 2**13).map(bytes),
    "members_length": near(TEXT, 2**64 - 1),
    "table_length": near(TABLE, 2**64 - 1),
    "index_offset": near(INDEX_OFFSET, 2**64 - 1),
    "index_length": near(64 + TEXT + TABLE, 2**64 - 1),
}


@st.composite
def nonsense(draw: st.DrawFn) -> dict[str, Any]:
    """One field or two that are not what they should be."""
    head: dict[str, Any] = {}
    wrong: dict[str, Any] = {"head": head}
    for name in draw(st.sets(st.sampled_from([*HEAD, *FILE]), min_size=1, max_size=2)):
        (head if name in HEAD else wrong)[name] = draw({**HEAD, **FILE}[name])
    return wrong


@given(nonsense())
@settings(max_examples=200)
def test_sealed_nonsense_raises_documented_errors_only(wrong: dict[str, Any]) -> None:
    """Whatever stands in the fields, with digests that hold: beyond what storage ever does by itself."""
    never_other_bytes(forged(**wrong))


MEMBER_FIELDS = {
    "part": JSON | near(1, 2**64),
    "nbytes": JSON | near(4801, 2**64),
    "index_digest": JSON | st.just("ab" * 16),
}


@st.composite
def odd_members(draw: st.DrawFn) -> Any:
    """Anything, or members with something wrong in one of them, or without one of its fields."""
    what = draw(st.sampled_from(["one field", "two fields", "a field less", "anything"]))
    if what == "anything":
        return draw(JSON)
    first, *others = draw(st.permutations(make_parity_v1.MEMBERS))
    names = draw(st.permutations(["part", "nbytes", "index_digest"]))
    if what == "a field less":
        return [{name: first[name] for name in names[1:]}, *others]
    wrong = {name: draw(MEMBER_FIELDS[name]) for name in names[: 1 + (what == "two fields")]}
    return [{**first, **wrong}, *others]


@given(odd_members(), st.booleans())
@settings(max_examples=200)
def test_sealed_nonsense_about_members_raises_documented_errors_only(members: Any, longest_fits: bool) -> None:
    lengths = [member["nbytes"] for member in make_parity_v1.MEMBERS]
    if longest_fits and isinstance(members, list):
        given_lengths = [member.get("nbytes") for member in members if isinstance(member, dict)]
        lengths = [each for each in given_lengths if type(each) is int and 0 <= each < 2**64] or lengths
    never_other_bytes(forged(members=members, head={"longest": max(lengths)}))
