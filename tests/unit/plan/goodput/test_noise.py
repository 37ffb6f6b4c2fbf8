"""The noise of gradients, and what it says of batches."""

from __future__ import annotations

import pytest

from deeppart.errors import ConfigError
from deeppart.plan.goodput import GradientNoise


def test_efficiency_is_by_the_noise_scale() -> None:
    """(noise scale + first batch) / (noise scale + batch): Pollux, equation 5."""
    noise = GradientNoise(2.0, 7.0, 64)
    for batch in (64, 100, 256, 8192):
        assert float(noise.efficiency(batch)) == pytest.approx((noise.scale + 64) / (noise.scale + batch))
        assert float(noise.gain(batch)) == pytest.approx(float(noise.efficiency(batch)) * batch / 64)


@pytest.mark.parametrize(("sqr", "var", "batch"), [(-1.0, 1.0, 1), (1.0, float("nan"), 1), (1.0, 1.0, 0)])
def test_impossible_noise(sqr: float, var: float, batch: int) -> None:
    with pytest.raises(ConfigError, match="impossible"):
        GradientNoise(sqr, var, batch)
