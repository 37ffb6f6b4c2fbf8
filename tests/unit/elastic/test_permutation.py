"""Orders: every place once, all orders as often, and the same ones for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deeppart.elastic.permutation import permuted


@pytest.mark.parametrize("length", [1, 2, 3, 10, 1000, 65_535, 65_536, 65_537, 66_049, 66_050, 200_003])
def test_every_place_once(length: int) -> None:
    found = permuted(np.arange(length), length, seed=7, epoch=3)
    assert np.array_equal(np.sort(found), np.arange(length))
    if length > 10:
        assert not np.array_equal(found, np.arange(length))


@settings(max_examples=20)
@given(st.integers(2, 1 << 62), st.integers(), st.integers(0, 1 << 40), st.integers(0, 5))
def test_any_part_is_a_part_of_the_whole(length: int, seed: int, epoch: int, number: int) -> None:
    start = max(0, min(length - 50, seed % length))
    part = np.arange(start, min(start + 50, length))
    found = permuted(part, length, seed, epoch, number)
    assert len(set(found.tolist())) == part.size and found.min() >= 0 and found.max() < length
    one = part.size // 2
    assert permuted(part[one : one + 1], length, seed, epoch, number)[0] == found[one]


def test_version_1_is_what_it_was() -> None:
    """A checkpoint of any version of the library names it: what it gives is never to change."""
    assert permuted(np.arange(8), 8, 0, 0).tolist() == SHORT
    assert permuted(np.arange(4), 10**9, 2024, 5, 1).tolist() == LONG


SHORT = [5, 1, 2, 3, 4, 6, 0, 7]
LONG = [730236214, 798292922, 2596853, 112773839]
