"""Which chunks of the next part refer to the last one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from deeppart.codec import EncodedChunk
from deeppart.model import BaseRecord
from deeppart.part import ChunkPlace
from deeppart.save.unchanged import LEAST_LIVE, MOST_BASES, SAMPLED_CHUNKS, SPACE_FACTOR, Holdings, choose, raw_digests
from deeppart.state.capture.layout import ChunkPlan

# --- what is referred to, by itself -----------------------------------------------------------------------------------


def holdings_of(chunks: list[tuple[bytes, int, BaseRecord]]) -> Holdings:
    places = {
        digest: (length, ChunkPlace(4096, EncodedChunk(0, b"", digest, digest), length, base))
        for digest, length, base in chunks
    }
    return Holdings(Path("step"), 0, 1, BaseRecord("f" * 32, 1 << 30, 9), places)


@given(st.data())
def test_the_files_are_never_much_longer_than_what_is_needed(data: st.DataObject) -> None:
    records = [
        BaseRecord(f"{number:032x}", data.draw(st.integers(5000, 40_000)), number)
        for number in range(data.draw(st.integers(1, 12)))
    ]
    cuts, digests, held = [], [], []
    left = {record: record.nbytes - 4500 for record in records}
    start = 0
    for number in range(data.draw(st.integers(0, 60))):
        length, record = data.draw(st.integers(1, 2000)), data.draw(st.sampled_from([None, *records]))
        digest = number.to_bytes(16, "big")
        cuts.append(ChunkPlan(start, length, "float32", False))
        digests.append(digest)
        start += length
        if record is not None and left[record] >= length:
            left[record] -= length
            held.append((digest, length, record))
    allowed = data.draw(st.none() | st.frozensets(st.sampled_from([record.index_digest for record in records])))
    found = choose(digests, cuts, holdings_of(held), allowed)
    known = {digest: (length, record) for digest, length, record in held}
    live: dict[BaseRecord, int] = {}
    for number, place in found.items():
        assert place.base is not None and known[digests[number]] == (cuts[number].length, place.base)
        assert allowed is None or place.base.index_digest in allowed
        live[place.base] = live.get(place.base, 0) + place.nbytes
    assert all(nbytes >= LEAST_LIVE * base.nbytes for base, nbytes in live.items()) and len(live) <= MOST_BASES
    if live:
        anew = start - sum(live.values())
        assert anew + sum(base.nbytes for base in live) <= SPACE_FACTOR * start


def test_a_length_that_differs_is_another_chunk() -> None:
    base = BaseRecord("1" * 32, 6000, 1)
    found = choose([b"d" * 16], [ChunkPlan(0, 1001, "", False)], holdings_of([(b"d" * 16, 1000, base)]))
    assert not found


@pytest.mark.parametrize("count", [0, 1, 5, SAMPLED_CHUNKS, 1000])
def test_a_few_chunks_tell_whether_to_look_at_all(count: int) -> None:
    data = np.random.default_rng(count).integers(0, 256, 64 * count, dtype=np.uint8)
    chunks = [ChunkPlan(64 * number, 64, "", False) for number in range(count)]
    right = [xxhash.xxh3_128_digest(data[chunk.start : chunk.start + 64].data) for chunk in chunks]
    base = BaseRecord("1" * 32, 6000, 1)
    some = holdings_of([(digest, 64, base) for digest in right])
    assert raw_digests(data.data, chunks, []) is None
    assert raw_digests(data.data, chunks, [holdings_of([])]) is None
    assert raw_digests(data.data, chunks, [holdings_of([]), some]) == (right if count else None)
