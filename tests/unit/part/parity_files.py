"""Parity files for the tests beside this module: drawn, written and read."""

from __future__ import annotations

import io

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
import xxhash

from deeppart.errors import FormatError
from deeppart.model import Attempt, ParityIdentity, ParityMember
from deeppart.part import (
    MemorySource,
    ParityReader,
    ParityWriter,
    stripes_of,
)
from tests.golden import make

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
            assert reader.block_is_good(row, index, memory) is good
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
    for blocks, digests in rows_of(identity, seed):
        writer.add_row(blocks, digests)
    assert writer.finish() == sink.getvalue()[-32:-16].hex()
    return sink.getvalue()
