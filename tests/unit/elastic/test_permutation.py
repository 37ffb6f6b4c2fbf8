"""Orders: every place once, all orders as often, and the same ones for ever."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from deeppart.elastic.permutation import permuted


@pytest.mark.parametrize("length", [1, 2, 3, 10, 1000, 65_535, 65_536, 65_537, 66_049, 66_050, 200_003])
def test_every_place_once(length: int) -> None:
    found = permuted(np.arange(length), length, seed=7, epoch=3)
    assert np.array_equal(np.sort(found), np.arange(length))
    if length > 10:
        assert not np.array_equal(found, np.arange(length))


@given(st.integers(2, 1 << 62), st.integers(), st.integers(0, 1 << 40), st.integers(0, 5))
def test_any_part_is_a_part_of_the_whole(length: int, seed: int, epoch: int, number: int) -> None:
    start = max(0, min(length - 50, seed % length))
    part = np.arange(start, min(start + 50, length))
    found = permuted(part, length, seed, epoch, number)
    assert len(set(found.tolist())) == part.size and found.min() >= 0 and found.max() < length
    one = part.size // 2
    assert permuted(part[one : one + 1], length, seed, epoch, number)[0] == found[one]


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_all_orders_are_as_frequent(length: int) -> None:
    """Over seeds, and over epochs of one seed."""
    trials, orders = 200 * math.factorial(length), list(itertools.permutations(range(length)))
    for vary in ("seed", "epoch"):
        found = Counter(
            tuple(permuted(np.arange(length), length, **{"seed": 1, "epoch": 1, vary: each}).tolist())
            for each in range(trials)
        )
        assert chisquare([found[order] for order in orders]).pvalue > 1e-4, vary


def test_a_network_of_many_places_mixes_them_all() -> None:
    """Where samples go, and what follows what, by 64 parts of 70,001."""
    length, parts = 70_001, 64
    goes, follows = np.zeros(parts * parts), np.zeros(parts)
    for seed in range(40):
        order = permuted(np.arange(length), length, seed, 0)
        goes += np.bincount(np.arange(length) * parts // length * parts + order * parts // length, minlength=parts**2)
        follows += np.bincount((order[1:] - order[:-1]) % length * parts // length, minlength=parts)
    assert chisquare(goes, ddof=2 * parts - 2).pvalue > 1e-4
    assert chisquare(follows).pvalue > 1e-4


def test_epochs_passes_and_seeds_differ() -> None:
    orders = {
        tuple(permuted(np.arange(100), 100, seed, epoch, number).tolist())
        for seed, epoch, number in itertools.product(range(-2, 5), range(5), range(3))
    }
    assert len(orders) == 7 * 5 * 3


def test_version_1_is_what_it_was() -> None:
    """A checkpoint of any version of the library names it: what it gives is never to change."""
    assert permuted(np.arange(8), 8, 0, 0).tolist() == SHORT
    assert permuted(np.arange(4), 10**9, 2024, 5, 1).tolist() == LONG


SHORT = [5, 1, 2, 3, 4, 6, 0, 7]
LONG = [730236214, 798292922, 2596853, 112773839]
