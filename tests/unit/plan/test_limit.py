"""The arithmetic of a bandwidth limit against the limit itself, on a clock that only sleeping moves on."""

from __future__ import annotations

import math

import numpy as np
import pytest

from deeppart.plan.limit import limited_s
from deeppart.storage import RateLimit


@pytest.mark.parametrize("idle_s", [0.1, 7.0])
@pytest.mark.parametrize("nbytes", [1 << 10, 9 << 20, 300 << 20])
def test_bytes_in_pieces_pass_when_the_arithmetic_says(nbytes: int, idle_s: float) -> None:
    now, piece, bytes_per_s = 100.0, 1 << 10, 100e6

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    limit = RateLimit(bytes_per_s, clock=lambda: now, sleep=sleep)
    sleep(idle_s)
    began = now
    for _ in range(nbytes // piece):
        limit.take(piece)
    expected = limited_s(np.array([float(nbytes)]), bytes_per_s)[0]
    assert now - began == pytest.approx(expected, abs=1.01 * piece / bytes_per_s)


def test_what_is_not_limited_takes_no_time() -> None:
    assert limited_s(np.array([1e12, 0.0]), math.inf).tolist() == [0.0, 0.0]
