"""Records of suspect steps: their bytes, what they name, how long they stay, and what the commands say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import xxhash

from deeppart.errors import CorruptFileError, FormatError
from deeppart.part import decode_suspicion, encode_suspicion
from tests.unit.suspicions import OTHER, RECORD, attempt


def test_what_is_suspect_and_what_is_not() -> None:
    paths = {sequence: [leaf.path for leaf in RECORD.leaves_of(attempt(sequence))] for sequence in range(3, 11)}
    assert paths == {3: [], 4: [], 5: ["a/b"], 6: ["a/b"], 7: ["a/b", "c"], 8: ["a/b", "c"], 9: [], 10: []}
    assert RECORD.leaves_of(attempt(7, OTHER)) == ()
    assert RECORD.leaves_of(replace(attempt(7), lineage=OTHER)) == ()


def test_bytes_of_a_record() -> None:
    data = encode_suspicion(RECORD)
    assert decode_suspicion(data, where="record") == RECORD
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(FormatError):
            decode_suspicion(bytes(damaged), where="record")
        with pytest.raises(CorruptFileError):
            decode_suspicion(data[:at], where="record")
    with pytest.raises(CorruptFileError):
        decode_suspicion(data + b" ", where="record")
    with pytest.raises(CorruptFileError, match="too long"):
        decode_suspicion(data + bytes(64 << 20), where="record")


def sealed(document: object) -> bytes:
    body = json.dumps(document).encode()
    return f"deeppart-suspect 9 xxh3-128={xxhash.xxh3_128_hexdigest(body)} bytes={len(body)}\n".encode() + body


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lineage", "x" * 32),
        ("session", None),
        ("sequence", -1),
        ("sequence", True),
        ("step", 2**63),
        ("steps", 5),
        ("steps", [1.5]),
        ("leaves", []),
        ("leaves", [1]),
        ("leaves", [{"path": "a", "ranks": "r", "after": 9, "after_step": 1}]),
        ("leaves", [{"path": "\udce4", "ranks": "r", "after": 1, "after_step": 1}]),
        ("leaves", [{"path": "a", "ranks": "r", "after": 1}]),
        ("more", 1),
    ],
)
def test_impossible_fields(name: str, value: object) -> None:
    document = json.loads(encode_suspicion(RECORD).split(b"\n", 1)[1])
    assert decode_suspicion(sealed(document), where="record") == RECORD
    with pytest.raises(CorruptFileError):
        decode_suspicion(sealed({**document, name: value}), where="record")
