"""Planes: every bit of every element is in one of them, and comes back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppart.codec.tensor import LAYOUTS, fold, folded_bytes, join, split, unfold, word_type
from tests.sampling import examples

RANDOM = np.random.default_rng(7)


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(sorted(LAYOUTS)), st.binary(min_size=8, max_size=400))
def test_planes_hold_every_bit(layout_id: int, data: bytes) -> None:
    layout = LAYOUTS[layout_id]
    elements = np.frombuffer(data, word_type(layout.item_bytes), len(data) // layout.item_bytes)
    planes = [np.empty(len(elements), word_type(word)) for word in layout.plane_words]
    split(elements, layout, planes)
    assert sum(plane.nbytes for plane in planes) == elements.nbytes
    back = np.empty_like(elements)
    join(planes, layout, back)
    assert back.tobytes() == elements.tobytes()


def test_what_the_planes_of_a_float_are() -> None:
    bits = np.array([0xBF9D_70A4], dtype=np.uint32)  # -1.23: sign 1, exponent 0x7f, mantissa 0x1d70a4
    planes = [np.empty(1, word_type(word)) for word in LAYOUTS[5].plane_words]
    split(bits, LAYOUTS[5], planes)
    assert [int(plane[0]) for plane in planes] == [0x70A4, 0x9D, 0x7F]
    bits = np.array([0xC002_3456_789A_BCDE], dtype=np.uint64)  # sign 1, exponent 0x400, mantissa 0x23456789abcde
    planes = [np.empty(1, word_type(word)) for word in LAYOUTS[7].plane_words]
    split(bits, LAYOUTS[7], planes)
    assert [int(plane[0]) for plane in planes] == [0x789ABCDE, 0x3456, 0xC2, 0x00]


@pytest.mark.parametrize("length", [0, 1, 7, 63, 64, 65, 127, 128, 1000, 4096])
def test_folding(length: int) -> None:
    plane = RANDOM.integers(0, 128, length, dtype=np.uint8)
    folded = np.full(folded_bytes(length), 0xEE, dtype=np.uint8)
    fold(plane, folded)
    back = np.full(length, 0xEE, dtype=np.uint8)
    unfold(folded, back)
    assert back.tobytes() == plane.tobytes()
    assert len(folded) == length - length // 64 * 8
