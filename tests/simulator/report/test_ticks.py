"""Marks of axes: round, within the axis, as many as fit."""

from __future__ import annotations

from itertools import pairwise

import pytest
from deeppart_simulator.report.chart import linear_ticks, log_ticks, log_time_ticks, time_labels, time_ticks

ROUND_S = {m * unit for unit, ms in ((60, (1, 2, 5, 10, 20, 30)), (3600, (1, 2, 4, 5, 6, 10, 12))) for m in ms}


def is_round(value: float) -> bool:
    """1, 2 or 5 with zeros."""
    return f"{value:.6e}"[:8] in ("1.000000", "2.000000", "5.000000")


def is_round_time(seconds: float) -> bool:
    return (is_round(seconds) and seconds <= 50) or seconds in ROUND_S | {30} or is_round(seconds / 86400)


@pytest.mark.parametrize("most", [3, 4, 5, 8])
def test_linear(most: int) -> None:
    for high in (10 ** (place / 7) for place in range(-40, 60)):
        for ticks, is_step in ((linear_ticks(0, high, most), is_round), (time_ticks(high, most), is_round_time)):
            steps = {float(f"{later - earlier:.6g}") for earlier, later in pairwise(ticks)}
            assert ticks[0] == 0 and ticks[-1] <= high * 1.000001 and 2 <= len(ticks) <= most
            assert len(steps) == 1 and is_step(steps.pop()), ticks


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (3.0, 3.0)])
def test_an_axis_without_length_has_one(low: float, high: float) -> None:
    assert linear_ticks(low, high) == [low]


@pytest.mark.parametrize("times", [1.3, 2, 7, 40, 3e3, 1e6, 1e12])
def test_logarithmic(times: float) -> None:
    for low in (10 ** (place / 3) for place in range(-20, 24)):
        for ticks, is_mark in (
            (log_ticks(low, low * times), is_round),
            (log_time_ticks(low, low * times), is_round_time),
        ):
            assert 2 <= len(ticks) <= 6 and ticks == sorted(set(ticks))
            assert low * 0.999999 <= ticks[0] and ticks[-1] <= low * times * 1.000001
            # On a short axis they are evenly apart instead.
            assert times < 40 or all(map(is_mark, ticks)), ticks


def test_times_are_told_in_one_unit() -> None:
    assert time_labels([0, 0.0005, 0.001]) == ["0", "0.5 ms", "1 ms"]
    assert time_labels([0, 20, 40]) == ["0", "20 s", "40 s"]
    assert time_labels([0, 1800, 3600]) == ["0", "30 min", "1 h"]
    assert time_labels([0, 2e-8]) == ["0", "20 ns"] and time_labels([]) == []
