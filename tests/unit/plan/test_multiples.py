"""Multiples that are tried: nested at first, others where they are small."""

from __future__ import annotations

import math

from deeppart.plan.multiples import MOST_EVERY, apart, around, neighbours


def test_multiples_next_to_the_intervals_each_one_of_that_before() -> None:
    assert around([10.0, 25.0, 80.0], 10.0) == {(1, 2, 8), (1, 3, 6), (1, 3, 9)}
    assert around([10.0, math.inf], 10.0) == {(1, MOST_EVERY)}


def test_a_level_that_is_wanted_is_not_taken_for_one_that_is_left_out() -> None:
    """However rarely it would be written: at every MOST_EVERY-th call is a level that nobody needs."""
    assert around([0.0, 1e9], 1.0) == {(1, MOST_EVERY - 1)}
    assert all(every[-1] < MOST_EVERY for every in neighbours((1, 100, 9900)))


def test_neighbours_divide_each_other_and_leave_out_what_is_left_out() -> None:
    found = neighbours((1, 4, MOST_EVERY, 12))
    assert {(1, 4, MOST_EVERY, 8), (1, 4, MOST_EVERY, 16), (1, 3, MOST_EVERY, 12), (1, 5, MOST_EVERY, 15)} <= found
    assert all(every[3] % every[1] == 0 and every[2] == MOST_EVERY for every in found)


def test_small_multiples_need_not_divide_each_other() -> None:
    found = apart((1, 2, 6))
    assert {(1, 2, 5), (1, 3, 6), (1, MOST_EVERY, 6)} <= found
    assert (1, 2, MOST_EVERY) not in found  # the highest level stays
    assert {(1, 3, 5, 6), (1, 3, 5, 12), (1, 3, 6, 6)} <= apart((1, 3, MOST_EVERY, 6))
    assert not any(math.lcm(*every) > 400 for every in apart((1, 97, 970)))
