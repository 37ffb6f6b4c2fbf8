"""Forged parity files, whose digests hold: what an evil or mad writer can write is refused."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import xxhash
from hypothesis import given

from deeppart.errors import CorruptFileError, FormatError, NewerFormatError
from deeppart.model import ParityIdentity
from tests.property.damage import damaged
from tests.unit.part.parity_files import (
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
