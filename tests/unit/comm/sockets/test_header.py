"""Headers of messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deeppart.comm.sockets.header import HEADER_BYTES, Kind, packed, unpacked

_signed, _unsigned = st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1)


@given(st.sampled_from(Kind), st.integers(0, 2**32 - 1), _signed, _signed, _unsigned, _unsigned)
def test_everything_comes_back(kind: Kind, channel: int, tag: int, number: int, first: int, second: int) -> None:
    header = packed(kind, (channel, tag, number), first, second)
    assert len(header) == HEADER_BYTES
    found = unpacked(header + b"what follows")
    assert found == (kind, (channel, tag, number), first, second)
