"""JSON from files: what two readers could take for two things is refused."""

from __future__ import annotations

import pytest

from deeppart.part.json_text import parse_json


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1,"a":1}',
        b'{"a":NaN}',
        b"1e999",
        b"-Infinity",
        b"9" * 5000,
        b"[" * 100_000,
        '"é"'.encode("utf-16"),
        b'"\xff"',
    ],
)
def test_json_that_two_readers_take_for_two_things(text: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        parse_json(text)
