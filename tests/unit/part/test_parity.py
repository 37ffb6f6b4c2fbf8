"""Parity files: golden bytes; what is written is read; what the writer refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import xxhash
from hypothesis import given

from deeppart.model import ParityIdentity, ParityMember
from deeppart.nodes import ReedSolomon
from deeppart.part import (
    FileSource,
    ParityReader,
    is_parity_file_name,
    parity_file_name,
    stripes_of,
)
from tests.golden import make
from tests.unit.part.parity_files import GOLDEN, IDENTITY, blocks_of, forged, identities, opened, rows_of, written

# --- golden -----------------------------------------------------------------------------------------------------


def test_golden_parity_reads_as_written() -> None:
    with FileSource(make.PARTS / make.PARITY_NAME) as source:
        reader = ParityReader(source, where="golden")
        reader.verify()
        blocks = blocks_of(reader)
    assert reader.identity == IDENTITY and parity_file_name(reader.identity) == make.PARITY_NAME
    assert reader.index_digest == "3e2ecc7c09d1b1eec194c7b89dec3a80"
    assert reader.stripes == stripes_of(IDENTITY) and reader.digests.shape == (3, 2, 4, 16)
    assert b"".join(block or b"" for block in blocks) == make.PAYLOAD
    assert xxhash.xxh3_128_hexdigest(GOLDEN) == "59637bf4fbdf640fd6ed7b2cce34716d"


def test_library_writes_what_the_document_says() -> None:
    """``forge`` follows docs/format.md without using the library, field arithmetic included."""
    data, index_digest = make.write_parity()
    assert data == GOLDEN == forged()
    assert index_digest == GOLDEN[-32:-16].hex()


def test_golden_parity_and_the_other_part_give_the_lost_part_back() -> None:
    """The file is of use by itself: which block of which stripe is where, is all in the layout."""
    reader, stripes, lost = opened(GOLDEN), stripes_of(IDENTITY), 0
    code = ReedSolomon(stripes.data_blocks, stripes.tolerate)
    rebuilt = b""
    for row in range(stripes.rows):
        length = stripes.length(row)
        for block in range(stripes.data_blocks):
            stripe = stripes.stripe_of(lost, block)
            (index,) = [j for j in range(stripes.tolerate) if stripes.kept_stripe(IDENTITY.place, j) == stripe]
            parity = np.empty(length, dtype=np.uint8)
            assert reader.read_block(row, index, parity)
            (other,) = [i for i in range(stripes.data_blocks) if i != block]
            start = stripes.start(row, other)
            data = make.PROTECTED[stripes.source(stripe, other)][start : start + length].ljust(length, b"\0")
            out = np.empty(length, dtype=np.uint8)
            rows = [other, stripes.data_blocks + index]
            code.rebuild([np.frombuffer(data, dtype=np.uint8), parity], rows, [block], [out])
            rebuilt += out.tobytes()
    part = make.PROTECTED[lost]
    assert rebuilt == part.ljust(len(rebuilt), b"\0") and part == make.make_part(0)[0]


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
        "parity-0123456789abcde-001-of-004.dpy",
        "parity-0123456789ABCDEF-001-of-004.dpy",
        "parity-0123456789abcdef-1-of-4.dpy",
        "parity-0123456789abcdef-001-of-004.dpy\n",
        "../parity-0123456789abcdef-001-of-004.dpy",
        ".parity-0123456789abcdef-001-of-004.dpy.tmp",
        "parity-0123456789abcdef-\u0661\u0662\u0663-of-004.dpy",
        "part-00000-of-00002.dpp",
    ],
)
def test_names_that_are_not_of_parity_files(name: str) -> None:
    assert not is_parity_file_name(name)


# --- what the writer refuses ----------------------------------------------------------------------------------------


def changed(**wrong: Any) -> ParityIdentity:
    """The golden identity with other fields; those of the attempt by their names."""
    of_attempt = {name: wrong.pop(name) for name in list(wrong) if hasattr(IDENTITY.attempt, name)}
    return replace(IDENTITY, attempt=replace(IDENTITY.attempt, **of_attempt), **wrong)


def with_member(part: Any, nbytes: Any = 5000, index_digest: Any = "ab" * 16) -> ParityIdentity:
    """The golden identity with another first member."""
    return changed(members=(ParityMember(part, nbytes, index_digest), *IDENTITY.members[1:]))


def test_limits_themselves_are_possible() -> None:
    most = changed(world_size=2**24, sequence=2**63 - 1, step=2**63 - 1, block_bytes=64 << 20)
    many = tuple(ParityMember(part, 4224, "0" * 32) for part in range(255))
    for identity in (most, replace(most, members=many, tolerate=254, place=254), with_member(0, 4224), with_member(0)):
        assert opened(written(identity)).identity == identity
