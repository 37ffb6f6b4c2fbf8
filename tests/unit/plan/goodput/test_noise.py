"""The noise of gradients, and what it says of batches."""

from __future__ import annotations

import math

import numpy as np
import pytest

from deeppart.errors import ConfigError
from deeppart.plan.goodput import GradientNoise


def test_efficiency_is_by_the_noise_scale() -> None:
    """(noise scale + first batch) / (noise scale + batch): Pollux, equation 5."""
    noise = GradientNoise(2.0, 7.0, 64)
    for batch in (64, 100, 256, 8192):
        assert float(noise.efficiency(batch)) == pytest.approx((noise.scale + 64) / (noise.scale + batch))
        assert float(noise.gain(batch)) == pytest.approx(float(noise.efficiency(batch)) * batch / 64)


def test_nothing_but_noise_and_none_at_all() -> None:
    assert GradientNoise(0.0, 5.0, 32).scale == math.inf and float(GradientNoise(0.0, 5.0, 32).gain(320)) == 10.0
    assert GradientNoise(5.0, 0.0, 32).scale == 0.0 and float(GradientNoise(5.0, 0.0, 32).gain(320)) == 1.0
    assert float(GradientNoise(0.0, 0.0, 32).gain(320)) == 1.0


def test_what_is_measured_of_random_gradients() -> None:
    """A mean of 4 times as many samples has the variance that the gain at 4 times the batch supposes."""
    random = np.random.default_rng(7)
    mean, spread, batch = np.array([1.0, -2.0]), 3.0, 8
    samples = mean + spread * random.standard_normal((40_000, 2))
    var = float(samples.reshape(-1, batch, 2).mean(axis=1).var(axis=0).sum())
    larger = float(samples.reshape(-1, 4 * batch, 2).mean(axis=1).var(axis=0).sum())
    sqr = float(mean @ mean)
    gain = float(GradientNoise(sqr, var, batch).gain(4 * batch))
    assert gain == pytest.approx((var + sqr) / (larger + sqr), rel=0.02)


@pytest.mark.parametrize(("sqr", "var", "batch"), [(-1.0, 1.0, 1), (1.0, float("nan"), 1), (1.0, 1.0, 0)])
def test_impossible_noise(sqr: float, var: float, batch: int) -> None:
    with pytest.raises(ConfigError, match="impossible"):
        GradientNoise(sqr, var, batch)
