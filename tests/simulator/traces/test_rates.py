"""Rates and their bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from deeppart_simulator.traces.fit import rate
from scipy import stats


@pytest.mark.parametrize("mean", [0.5, 3.0, 10.0, 40.0, 150.0])
def test_bounds_hold_as_often_as_they_say(mean: float) -> None:
    """Added up over all counts: 95 % at least, and not much more where counts are not small."""
    true_s = 1000.0 / mean
    covered = 0.0
    for count in range(int(mean + 12 * math.sqrt(mean) + 20)):
        found = rate(count, 1000.0)
        covered += float(stats.poisson.pmf(count, mean)) * (found.low_s <= true_s <= found.high_s)
    assert 0.95 <= covered <= (1.0 if mean < 10 else 0.98 if mean < 40 else 0.97)


def test_they_are_those_of_the_chi_square_distribution() -> None:
    found = rate(7, 350.0)
    assert found.mtbf_s == 50.0
    assert found.high_s == pytest.approx(2 * 350 / stats.chi2.ppf(0.025, 14), rel=1e-9)
    assert found.low_s == pytest.approx(2 * 350 / stats.chi2.ppf(0.975, 16), rel=1e-9)


def test_no_failure_is_a_bound_and_one_is_a_wide_one() -> None:
    none, one = rate(0, 100.0), rate(1, 100.0)
    assert math.isinf(none.mtbf_s) and math.isinf(none.high_s)
    assert none.low_s == pytest.approx(100 / -math.log(0.025))  # exp(-T / m) = 2.5 %
    assert one.mtbf_s == 100 and one.low_s < 25 and one.high_s > 3000


def test_bursts_make_bounds_wider() -> None:
    """Counts of a renewal process with Weibull gaps: Poisson's bounds would be too narrow."""
    shape, random = 0.7, np.random.default_rng(2)
    scale = 1 / math.gamma(1 + 1 / shape)
    dispersion = math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2 - 1
    gaps = scale * random.weibull(shape, size=(1500, 260))
    counts = (np.cumsum(gaps, axis=1) < 100.0).sum(axis=1)
    wide = [rate(int(count), 100.0, dispersion) for count in counts]
    narrow = [rate(int(count), 100.0) for count in counts]
    held, missed = (np.mean([each.low_s <= 1.0 <= each.high_s for each in those]) for those in (wide, narrow))
    assert 0.93 <= held <= 0.97 and missed < 0.9
