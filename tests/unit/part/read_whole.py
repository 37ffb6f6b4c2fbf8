"""A part read whole: its bytes, or the error that refuses it."""

from __future__ import annotations

import pytest

from deeppart.errors import CorruptFileError, NewerFormatError
from deeppart.part import MemorySource, PartReader


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
