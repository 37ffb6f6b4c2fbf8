"""Chunks stored as they are: nothing is copied."""

from __future__ import annotations

from deeppart.codec import Chooser
from deeppart.codec.base import RawCodec


def test_raw_copies_nothing() -> None:
    raw = memoryview(bytearray(b"abc"))
    assert RawCodec().encode(raw) is raw
    assert RawCodec().decode(raw, 3) is raw
    assert Chooser("none").encode_chunk(raw).data is raw
    into = memoryview(bytearray(3))
    assert RawCodec().decode(raw, 3, into) is into and into == raw
