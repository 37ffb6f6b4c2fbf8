"""How a share lies in its part: aligned, each kind in chunks of its own, every byte once."""

from __future__ import annotations

import random

import pytest

from deeppart.state.capture.layout import ALONE_BYTES, CHUNK_BYTES, OWN, SHARED, ShareLayout, lay_out
from deeppart.state.tensors.leaves import LeafType


def kind(dtype: str, *shape: int) -> LeafType:
    return LeafType("tensor", dtype, shape)


def order(layout: ShareLayout) -> list[tuple[int, int]]:
    return [(int(row["table"]), int(row["leaf"])) for row in layout.spans]


def whole(types: list[LeafType], *leaves: int) -> list[tuple[int, int, int]]:
    return [(leaf, 0, types[leaf].nbytes) for leaf in leaves]


def test_larger_elements_come_first_then_shared_then_what_is_not_trained() -> None:
    types = [kind("uint8", 3), kind("float32", 5), kind("float64", 1), kind("float32", 2), kind("float32", 7)]
    layout = lay_out(types, whole(types, 0, 1, 2, 3), whole(types, 4), trained={1})
    assert order(layout) == [(SHARED, 2), (SHARED, 3), (SHARED, 1), (OWN, 4), (SHARED, 0)]
    assert layout.spans["raw_offset"].tolist() == [0, 8, 16, 36, 64] and layout.nbytes == 67
    assert [(chunk.dtype, chunk.per_rank, chunk.length) for chunk in layout.chunks] == [
        ("float64", False, 8), ("float32", False, 8), ("float32", False, 20), ("float32", True, 28),
        ("uint8", False, 3),
    ]  # fmt: skip


def test_large_segments_are_alone_and_are_cut_at_elements() -> None:
    count = CHUNK_BYTES // 8 + 5
    types = [kind("int64", 3), kind("int64", count), kind("int64", 4)]
    layout = lay_out(types, whole(types, 0, 1, 2), [])
    lengths = [chunk.length for chunk in layout.chunks]
    assert lengths == [24, CHUNK_BYTES, 40, 32]


def test_small_segments_share_chunks_that_are_never_too_long() -> None:
    types = [kind("float32", (ALONE_BYTES - 4) // 4)] * 9
    layout = lay_out(types, whole(types, *range(9)), [])
    assert [chunk.length for chunk in layout.chunks] == [4 * (ALONE_BYTES - 4)] * 2 + [ALONE_BYTES - 4]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_share_chunks_follow_each_other_and_hold_one_kind(seed: int) -> None:
    draw = random.Random(seed)
    dtypes = ["uint8", "float16", "float32", "float64", "complex128"]
    types = [kind(draw.choice(dtypes), draw.choice([1, 7, 1000, 200_000, 1_000_000])) for _ in range(12)]
    own = sorted(draw.sample(range(12), 3))
    trained = set(draw.sample(range(12), 5))
    shared = [span for span in whole(types, *range(12)) if span[0] not in own]
    layout = lay_out(types, shared, whole(types, *own), trained)
    assert layout.nbytes == sum(each.nbytes for each in types) == sum(chunk.length for chunk in layout.chunks)
    at = 0
    for chunk in layout.chunks:
        assert chunk.start == at and 0 < chunk.length <= CHUNK_BYTES
        at += chunk.length
        rows = layout.spans
        inside = rows[(rows["raw_offset"] < at) & (rows["raw_offset"] + rows["length"] > chunk.start)]
        assert {types[leaf].tag for leaf in inside["leaf"]} == {chunk.dtype}
        assert set(inside["table"].tolist()) == {OWN if chunk.per_rank else SHARED}
        assert len({leaf in trained for leaf in inside["leaf"].tolist()}) == 1
    for row in layout.spans:
        assert row["raw_offset"] % types[int(row["leaf"])].itemsize == 0
