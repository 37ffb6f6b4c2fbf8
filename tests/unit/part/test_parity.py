"""Parity files: golden bytes; what is written is read; and what is forged or damaged never passes for parity."""

from __future__ import annotations

import io
import itertools
import json
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given

from deeppart.errors import CorruptFileError, FormatError, NewerFormatError
from deeppart.model import Attempt, ParityIdentity, ParityMember
from deeppart.part import (
    FileSource,
    MemorySource,
    ParityReader,
    ParityWriter,
    is_parity_file_name,
    parity_file_name,
    stripes_of,
)
from tests.golden import make
from tests.property.damage import damaged

IDENTITY = make.IDENTITY
GOLDEN = (make.PARTS / make.PARITY_NAME).read_bytes()
INDEX_OFFSET = 4096 + len(make.PAYLOAD)
forged = make.forge_parity


def opened(data: bytes | bytearray) -> ParityReader:
    return ParityReader(MemorySource(data), where="share under test")


def blocks_of(reader: ParityReader) -> list[bytes | None]:
    """All blocks in file order; None for one whose digest does not hold."""
    blocks: list[bytes | None] = []
    for row in range(reader.stripes.rows):
        for index in range(reader.stripes.tolerate):
            memory = np.empty(reader.stripes.length(row), dtype=np.uint8)
            good = reader.read_block(row, index, memory)
            blocks.append(memory.tobytes() if good else None)
    return blocks


def refused(data: bytes | bytearray) -> Exception:
    """Open and read everything; return the error, which must be one of the format's and must say where."""
    with pytest.raises(FormatError) as caught:
        opened(data).verify()
    assert "share under test" in str(caught.value)
    return caught.value


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
    rows = rows_of(identity, seed)
    for blocks, _ in rows:
        writer.add_row(blocks)
    digests = np.array([digests for _, digests in rows], np.uint8)
    assert (
        writer.finish(digests.reshape(-1, identity.tolerate, len(identity.members), 16))
        == sink.getvalue()[-32:-16].hex()
    )
    return sink.getvalue()


# --- golden -----------------------------------------------------------------------------------------------------


def test_golden_parity_reads_as_written() -> None:
    with FileSource(make.PARTS / make.PARITY_NAME) as source:
        reader = ParityReader(source, where="golden")
        reader.verify()
        blocks = blocks_of(reader)
    assert reader.identity == IDENTITY and parity_file_name(reader.identity) == make.PARITY_NAME
    assert reader.index_digest == "91db19ef0660a775f92fa03d38f37eb3"
    assert reader.stripes == stripes_of(IDENTITY) and reader.digests.shape == (3, 2, 4, 16)
    assert b"".join(block or b"" for block in blocks) == make.PAYLOAD
    assert xxhash.xxh3_128_hexdigest(GOLDEN) == "93c167ac5c97bae26f2b74df86727eda"


def test_library_writes_what_the_document_says() -> None:
    """``forge`` follows docs/format.md without using the library, field arithmetic included."""
    data, index_digest = make.write_parity()
    assert data == GOLDEN == forged()
    assert index_digest == GOLDEN[-32:-16].hex()


# --- writing and reading back ---------------------------------------------------------------------------------------


@given(identities(), st.integers(0, 2**32))
def test_round_trip(identity: ParityIdentity, seed: int) -> None:
    reader = opened(written(identity, seed))
    reader.verify()
    rows = rows_of(identity, seed)
    assert reader.identity == identity and reader.stripes == stripes_of(identity)
    assert blocks_of(reader) == [block.tobytes() for blocks, _ in rows for block in blocks]
    assert reader.digests.tolist() == [digests.tolist() for _, digests in rows]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "parity-0123456789abcdef-001-of-004.dpp",
        "parity-0123456789ABCDEF-001-of-004.dpy",
        "parity-0123456789abcdef-001-of-004.dpy\n",
        "../parity-0123456789abcdef-001-of-004.dpy",
        "parity-0123456789abcdef-\u0661\u0662\u0663-of-004.dpy",
        "part-00000-of-00002.dpp",
    ],
)
def test_names_that_are_not_of_parity_files(name: str) -> None:
    assert not is_parity_file_name(name)


def test_limits_themselves_are_possible() -> None:
    attempt = replace(IDENTITY.attempt, world_size=2**24, sequence=2**63 - 1, step=2**63 - 1)
    most = replace(IDENTITY, attempt=attempt, block_bytes=64 << 20)
    many = tuple(ParityMember(part, 4224, "0" * 32) for part in range(255))
    small = replace(IDENTITY, members=(ParityMember(0, 4224, "ab" * 16), *IDENTITY.members[1:]))
    for identity in (most, replace(most, members=many, tolerate=254, place=254), small):
        assert opened(written(identity)).identity == identity


# --- forged: all digests hold -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"magic": b"\x89DPY\n\n\x1a\n"}, "not a deeppart parity file"),
        ({"length": 8192}, "not as it is written"),
        ({"padding": bytes(3975) + b"\1"}, "not as it is written"),
        ({"sequence": 2**63}, "sequence"),
        ({"world_size": 1}, "part 1"),
        ({"members": 3}, "different sets"),
        ({"longest": 4824}, "different sets"),
        ({"tolerate": 0}, "of which 0 may be lost"),
        ({"tolerate": 4}, "of which 4 may be lost"),
        ({"tolerate": 1}, "different sets"),
        ({"place": 4}, "member 4 of 4"),
        ({"block_bytes": 0}, "blocks of 0 bytes"),
        ({"block_bytes": 2**64 - 64}, "blocks of"),
        ({"block_bytes": 64}, "different sets"),
    ],
)
def test_impossible_header(wrong: dict[str, Any], text: str) -> None:
    error = refused(forged(head=wrong))
    assert text in str(error)
    assert type(error) is CorruptFileError


@pytest.mark.parametrize(
    "wrong",
    [
        {"head": {"set_id": "0" * 16}},
        {"head": {"id_padding": b"\1" + bytes(7)}},
        {"index_reserved": b"\1" + bytes(31)},
        {"index_reserved": bytes(31) + b"\1"},
        {"index_offset": INDEX_OFFSET - 1},  # a footer, as parts have it
        {"index_offset": INDEX_OFFSET + 1, "index_length": len(GOLDEN) - INDEX_OFFSET - 65},
    ],
)
def test_nothing_may_stand_where_nothing_is_read(wrong: dict[str, Any]) -> None:
    """Reserved bytes are zero, and a reader refuses anything else: so that they can be given a meaning."""
    assert type(refused(forged(**wrong))) is CorruptFileError


def test_another_version_is_told_from_damage() -> None:
    error = refused(forged(head={"version": 10}))
    assert type(error) is NewerFormatError and "version 10; this deeppart reads version 9" in str(error)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"index_magic": b"DPPINDEX"}, "not one of a parity file"),
        ({"header_digest": bytes(8)}, "not this one's"),
        ({"members_length": 0}, "not one of a parity file"),
        ({"table_length": 383}, "not one of a parity file"),
        # adds up, but not to the members and the table that are there
        ({"members_length": 0, "table_length": 384 + len(json.dumps(make.MEMBERS))}, "cannot be read"),
        ({"members": make.MEMBERS, "digests": b""}, "another length than its set"),
        ({"digests": make.DIGESTS[:-16]}, "another length than its set"),
        ({"digests": make.DIGESTS * 2}, "another length than its set"),
        ({"payload": b""}, "another length than its set"),
        ({"payload": make.PAYLOAD[:-64]}, "another length than its set"),
        ({"payload": make.PAYLOAD + bytes(64)}, "another length than its set"),
    ],
)
def test_impossible_index(wrong: dict[str, Any], text: str) -> None:
    error = refused(forged(**wrong))
    assert text in str(error)
    assert type(error) is CorruptFileError


def members_with(**wrong: Any) -> list[dict[str, Any]]:
    """The golden members with other fields in the first."""
    return [{**make.MEMBERS[0], **wrong}, *make.MEMBERS[1:]]


WITHOUT_PART = {"part": None, "nbytes": 0, "index_digest": ""}


@pytest.mark.usefixtures("no_garbage")
@pytest.mark.parametrize(
    ("members", "text"),
    [
        (b"[", "cannot be read"),
        (b"[1, 2, 3, 4]", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"[]", "of 0"),
        (make.MEMBERS[:3], "different sets"),
        ([*make.MEMBERS, WITHOUT_PART], "different sets"),
        (members_with(more=1), "cannot be read"),
        ([{"part": 0, "nbytes": 4825}], "cannot be read"),
        (members_with(part=1), "a part twice"),
        (members_with(part=2), "part 2"),
        (members_with(part=False), "part False"),
        (members_with(part=10**4000), "part 1"),
        (members_with(nbytes=4824), "different sets"),
        (members_with(nbytes=4223), "4223 bytes"),
        (members_with(nbytes=-1), "-1 bytes"),
        (members_with(nbytes=float("inf")), "Infinity"),
        (members_with(index_digest="AB" * 16), "part 0"),
        (members_with(index_digest=""), "part 0"),
        ([WITHOUT_PART] * 4, "no part"),
        ([*make.MEMBERS[:3], {**WITHOUT_PART, "nbytes": 1}], "part None of 1 bytes"),
        ([*make.MEMBERS[:3], {**WITHOUT_PART, "index_digest": "ab" * 16}], "part None"),
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
        table = np.frombuffer(make.DIGESTS, dtype=np.uint8).reshape(3, 2, 4, 16).copy()
        table[row, index, 2 + index] ^= 1
        reader = opened(forged(digests=table.tobytes()))
        bad = [number for number, block in enumerate(blocks_of(reader)) if block is None]
        assert bad == [2 * row + index]
        assert f"row {row}, block {index}" in str(refused(forged(digests=table.tobytes())))


# --- damaged by storage ----------------------------------------------------------------------------------------------


def test_every_flipped_byte_is_found() -> None:
    damaged = bytearray(GOLDEN)
    for i, mask in zip(range(len(damaged)), itertools.cycle((0xFF, 0x01, 0x80)), strict=False):
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


# --- anything at all -----------------------------------------------------------------------------------------------


def never_other_bytes(data: bytes | bytearray) -> bool:
    """Open and read: the documented errors and no other, and only blocks whose digest holds. Whether it was opened."""
    try:
        reader = opened(data)
    except FormatError:
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


@given(identities(), st.data())
def test_damage_never_comes_back_as_parity(identity: ParityIdentity, data: st.DataObject) -> None:
    sound = written(identity)
    bad = data.draw(damaged(sound, near_the_end=700))
    if never_other_bytes(bad):
        reader, whole = opened(bad), opened(sound)
        assert reader.identity == identity and reader.digests.tolist() == whole.digests.tolist()
        assert all(one in (None, other) for one, other in zip(blocks_of(reader), blocks_of(whole), strict=True))
        assert (None in blocks_of(reader)) is (bad != sound)
