"""A bandwidth limit, with a clock of its own: what passes on average, and in a burst."""

from __future__ import annotations

import pytest

from deeppart.storage import RateLimit


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def limited(bytes_per_s: float, burst_s: float = 0.0) -> tuple[RateLimit, Clock]:
    clock = Clock()
    return RateLimit(bytes_per_s, burst_s=burst_s, clock=clock, sleep=clock.sleep), clock


def test_the_first_bytes_never_wait_and_all_others_keep_the_average() -> None:
    limit, clock = limited(1000.0)
    limit.take(500)
    assert clock.now == 100.0
    for _ in range(10):
        limit.take(500)
    assert clock.now == pytest.approx(105.0)


def test_an_idle_time_is_kept_as_a_burst_and_no_more_than_that() -> None:
    limit, clock = limited(1000.0, burst_s=0.5)
    limit.take(1000)
    clock.now += 3600
    limit.take(500)  # as much as an hour of idling is worth
    limit.take(500)
    assert clock.now == 3700.0
    limit.take(1)
    assert clock.now == pytest.approx(3700.5)
