"""The shape of a Weibull distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from deeppart_simulator.traces.fit import Shape, Times, fit_shape
from scipy import stats

NOTHING = np.empty(0)


@pytest.mark.parametrize("censored", [0, 30])
@pytest.mark.parametrize("shape", [0.5, 0.8, 1.0, 2.5])
def test_with_many_failures_the_shape_is_the_one_that_scipy_finds(shape: float, censored: int) -> None:
    """Which takes the most likely scale: the more failures, the less it matters."""
    random = np.random.default_rng(7)
    failed, left = 5.0 * random.weibull(shape, 2000), 2.0 * random.random(censored) + 0.1
    data = stats.CensoredData(uncensored=failed, right=left)
    expected, _, _ = stats.weibull_min.fit(data, floc=0)
    found = fit_shape([Times(failed, left)])
    assert found is not None and found.shape == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("classes", "each"), [(1, 4), (1, 8), (4, 3)])
def test_few_failures_do_not_look_like_more(classes: int, each: int) -> None:
    """With the most likely scales 89 to 91 % of the bounds held, and the shape was a fifth too large and more."""
    random, found = np.random.default_rng(5), []
    for _ in range(400):
        one = fit_shape([Times(1e3 * random.weibull(0.7, each), NOTHING) for _ in range(classes)])
        assert one is not None
        found.append(one)
    assert 0.92 <= np.mean([one.low <= 0.7 <= one.high for one in found]) <= 0.975
    assert np.median([one.shape for one in found]) == pytest.approx(0.7, rel=0.06)


def test_the_shape_is_that_of_the_likelihood_with_the_scale_integrated_out() -> None:
    """By sums over the logarithm of the scale, of what scipy has as density and as the chance to last longer."""
    failed, left = np.array([0.3, 1.0, 4.0, 0.2]), np.array([2.5])
    shapes, scales = np.arange(0.15, 2.5, 0.005), np.exp(np.linspace(-30, 30, 3001))
    likelihoods = []
    for shape in shapes:
        logs = stats.weibull_min.logpdf(failed[:, None], shape, scale=scales).sum(0)
        logs += stats.weibull_min.logsf(left[:, None], shape, scale=scales).sum(0)
        likelihoods.append(np.exp(logs).sum())
    found = fit_shape([Times(failed, left)])
    assert found is not None and found.shape == pytest.approx(shapes[int(np.argmax(likelihoods))], abs=0.006)
    inside = shapes[np.log(likelihoods) > np.log(max(likelihoods)) - stats.chi2.ppf(0.95, 1) / 2]
    assert (found.low, found.high) == pytest.approx((inside[0], inside[-1]), abs=0.006)


@pytest.mark.parametrize("shape", [0.7, 1.0, 1.5])
def test_bounds_hold_as_often_as_they_say(shape: float) -> None:
    """Gaps until a fixed time, the last one censored, as a trace has them; 93 to 97 of 100, and little bias."""
    random, found = np.random.default_rng(11), []
    for _ in range(400):
        times = np.cumsum(random.weibull(shape, 200))
        until = 70 * math.gamma(1 + 1 / shape)
        inside = times[times < until]
        fitted = fit_shape([Times(np.diff(inside), np.array([until - inside[-1]]))])
        assert fitted is not None
        found.append(fitted)
    covered = np.mean([each.low <= shape <= each.high for each in found])
    assert 0.93 <= covered <= 0.975, covered
    assert np.mean([each.shape for each in found]) == pytest.approx(shape, rel=0.04)
    refused = np.mean([not each.exponential for each in found])
    assert refused <= 0.075 if shape == 1.0 else refused > 0.8


def test_classes_share_a_shape_and_not_a_scale() -> None:
    random = np.random.default_rng(3)
    few, many = 1e-3 * random.weibull(0.7, 50), 1e6 * random.weibull(0.7, 400)
    together = fit_shape([Times(few, NOTHING), Times(many, NOTHING), Times(NOTHING, np.array([5.0]))])
    alone, mixed = fit_shape([Times(many, NOTHING)]), fit_shape([Times(np.concatenate([few, many]), NOTHING)])
    assert together is not None and alone is not None and mixed is not None
    assert together.low < 0.7 < together.high and together.high - together.low < alone.high - alone.low
    assert together.failures == 450 and mixed.shape < 0.4


def test_the_unit_of_time_does_not_matter() -> None:
    times = np.random.default_rng(4).weibull(1.3, 40)
    one, other = (fit_shape([Times(factor * times, np.array([factor]))]) for factor in (1e-9, 1e12))
    assert one is not None and other is not None
    assert (one.shape, one.low, one.high) == pytest.approx((other.shape, other.low, other.high), rel=1e-6)


def test_ties_and_extremes() -> None:
    same = fit_shape([Times(np.full(20, 7.0), NOTHING)])
    assert same is not None and same.high == 50.0  # as regular as can be: no upper bound but the search's
    apart = fit_shape([Times(np.array([1e-6, 1.0, 1e6, 1e12]), NOTHING)])
    assert apart is not None and apart.shape < 0.2


def test_too_few_say_nothing() -> None:
    assert fit_shape([]) is None and fit_shape([Times(np.array([1.0, 2.0]), np.array([9.0]))]) is None
    with pytest.raises(ValueError, match="above 0"):
        fit_shape([Times(np.array([0.0, 1.0, 2.0]), NOTHING)])


def test_the_spread_of_the_times() -> None:
    assert Shape(1.0, 1.0, 1.0, 1.0, 9).dispersion == pytest.approx(1.0)
    drawn = np.random.default_rng(1).weibull(0.7, 400_000)
    assert Shape(0.7, 0, 0, 0, 9).dispersion == pytest.approx(np.var(drawn) / np.mean(drawn) ** 2, rel=0.03)
