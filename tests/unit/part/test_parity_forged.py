"""Forged parity files, whose digests hold: what an evil or mad writer can write is refused."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import xxhash
from hypothesis import given

from deeppart.errors import CorruptFileError, FormatError, NewerFormatError
from deeppart.model import ParityIdentity
from tests.golden import make
from tests.property.damage import damaged
from tests.unit.part.parity_files import (
    GOLDEN,
    INDEX_OFFSET,
    blocks_of,
    forged,
    identities,
    opened,
    refused,
    written,
)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"magic": b"\x89DPY\n\n\x1a\n"}, "not a deeppart parity file"),
        ({"magic": b"\x89DPP\r\n\x1a\n"}, "not a deeppart parity file"),
        ({"length": 8192}, "not as it is written"),
        ({"padding": b"\0\0\1"}, "not as it is written"),
        ({"padding": bytes(3975) + b"\1"}, "not as it is written"),
        ({"sequence": 2**63}, "sequence"),
        ({"step": 2**64 - 1}, "step"),
        ({"world_size": 0}, "world"),
        ({"world_size": 1}, "part 1"),
        ({"world_size": 2**24 + 1}, "world_size"),
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


@pytest.mark.parametrize(("version", "kind"), [(0, FormatError), (6, FormatError), (8, NewerFormatError)])
def test_another_version_is_told_from_damage(version: int, kind: type[FormatError]) -> None:
    error = refused(forged(head={"version": version}))
    assert type(error) is kind and f"version {version}; this deeppart reads version 7" in str(error)


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
        ({"members_length": 0, "table_length": 384 + len(json.dumps(make.MEMBERS))}, "cannot be read"),
        ({"members": make.MEMBERS, "digests": b""}, "another length than its set"),
        ({"digests": make.DIGESTS[:-1]}, "another length than its set"),
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
        (b"null", "cannot be read"),
        (b"[1, 2, 3, 4]", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b'[{"part": ' + b"9" * 5000 + b"}]", "cannot be read"),
        (b"[]", "of 0"),
        (make.MEMBERS[:3], "different sets"),
        ([*make.MEMBERS, WITHOUT_PART], "different sets"),
        (members_with(more=1), "cannot be read"),
        ([{"part": 0, "nbytes": 4825}], "cannot be read"),
        (members_with(part=-1), "part -1"),
        (members_with(part=1), "a part twice"),
        (members_with(part=2), "part 2"),
        (members_with(part=False), "part False"),
        (members_with(part="\ud800" * 1000), "part"),
        (members_with(part=10**4000), "part 1"),
        (members_with(nbytes=4824), "different sets"),
        (members_with(nbytes=4223), "4223 bytes"),
        (members_with(nbytes=-1), "-1 bytes"),
        (members_with(nbytes=float("inf")), "Infinity"),
        (members_with(nbytes=None), "None bytes"),
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
