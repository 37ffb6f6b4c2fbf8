"""Which choices are worth a look, and which one is advised."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from deeppart_simulator.advise.choose import AS_GOOD_OF_ALL, advised, as_good_as_least, front_of, least_restart, loss_of

from deeppart.plan.interval import Waste


@dataclass(frozen=True)
class Weighed:
    waste: Waste
    drained_daily_bytes: float
    node_daily_bytes: float
    simplicity: tuple[int, ...] = (0,)
    idle: float = 0.0


def choice(loss: float, drained: float, worn: float, simplicity: int = 0, restart: float = 0.4) -> Weighed:
    return Weighed(Waste(loss / 2, loss / 2, restart), drained, worn, (simplicity,))


def test_on_the_front_is_what_no_other_one_is_as_good_as() -> None:
    best, rare, simple = choice(0.010, 100.0, 10.0, 1), choice(0.012, 20.0, 10.0, 1), choice(0.013, 200.0, 10.0, 0)
    worse = choice(0.014, 100.0, 10.0, 1)
    assert front_of([worse, simple, rare, best]) == (best, rare, simple)


def test_what_loses_ten_times_the_least_is_not_worth_a_look() -> None:
    assert front_of([choice(0.010, 100.0, 10.0), choice(0.101, 1.0, 1.0)]) == (choice(0.010, 100.0, 10.0),)


def test_the_time_to_come_back_makes_nothing_as_good() -> None:
    """Half of the time is lost by coming back, whatever is chosen: five percent of that is no excuse."""
    best, more = choice(0.010, 100.0, 10.0, 1, restart=0.5), choice(0.025, 1.0, 10.0, 0, restart=0.5)
    assert least_restart([best, more]) == 0.5
    assert advised(front_of([best, more])) == best


def test_coming_back_slower_is_lost_time_too() -> None:
    fast, slow = choice(0.01, 10.0, 10.0, restart=0.40), choice(0.01, 1.0, 10.0, restart=0.45)
    assert abs(loss_of(slow, least_restart([fast, slow])) - 0.06) < 1e-12
    assert advised(front_of([fast, slow])) == fast


def test_of_those_that_lose_nearly_least_the_file_system_counts_first_then_drives_then_how_simple_it_is() -> None:
    best, same, simple = choice(0.0100, 1000.0, 1.0, 0), choice(0.0102, 10.0, 50.0, 3), choice(0.0103, 15.0, 20.0, 2)
    assert advised(front_of([best, same])) == same
    assert advised(front_of([best, same, simple])) == simple, "drives wear less than half as much"
    simplest = choice(0.0104, 16.0, 30.0, 1)
    assert advised(front_of([best, same, simple, simplest])) == simplest, "as few bytes, within a factor of two"


def test_what_nobody_would_notice_is_as_good() -> None:
    best, rare = choice(0.00010, 1000.0, 1.0), choice(0.00010 + 0.9 * AS_GOOD_OF_ALL, 1.0, 1.0)
    assert advised([best, rare]) == rare
    assert advised([best, choice(0.00010 + 1.1 * AS_GOOD_OF_ALL, 1.0, 1.0)]) == best


def test_what_is_as_good_as_the_least_is_what_may_be_advised() -> None:
    best = choice(0.1, 100.0, 10.0)
    limit = as_good_as_least([best])
    assert limit == pytest.approx(0.105)
    inside, outside = choice(limit - 1e-6, 1.0, 10.0), choice(limit + 1e-6, 1.0, 10.0)
    assert advised([best, inside]) == inside and advised([best, outside]) == best


def test_where_most_is_lost_a_twentieth_of_that_is_no_excuse() -> None:
    """0.1402 of the time is useful where 0.1548 could be."""
    best, rare = choice(0.8452, 100.0, 10.0, restart=0.0), choice(0.8598, 1.0, 10.0, restart=0.0)
    assert advised([best, rare]) == best
    assert as_good_as_least([best, rare]) == pytest.approx(0.8452 + 0.01 * 0.1548)


def test_what_calls_take_that_save_nothing_makes_nothing_as_good() -> None:
    """Of 3 % that are lost, 1 % is lost whatever is chosen."""
    best, rare = (replace(choice(loss, drained, 10.0), idle=0.01) for loss, drained in ((0.03, 100.0), (0.0312, 1.0)))
    assert advised([best, rare]) == best
    assert as_good_as_least([best]) == pytest.approx(0.03 + 0.05 * 0.02)
