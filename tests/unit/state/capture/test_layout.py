"""How a share lies in its part: aligned, each kind in chunks of its own, every byte once."""

from __future__ import annotations

import random

import pytest

from deeppart.state.capture.layout import CHUNK_BYTES, OWN, SHARED, lay_out
from deeppart.state.tensors.leaves import LeafType


def kind(dtype: str, *shape: int) -> LeafType:
    return LeafType("tensor", dtype, shape)


def whole(types: list[LeafType], *leaves: int) -> list[tuple[int, int, int]]:
    return [(leaf, 0, types[leaf].nbytes) for leaf in leaves]


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
