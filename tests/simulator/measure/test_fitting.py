"""Constants and slopes from measured checkpoints."""

from __future__ import annotations

import math

import pytest
from deeppart_simulator.measure.fitting import Sample, fit

from tests.simulator.measure.samples import samples_of


def test_a_fit_finds_what_was_put_in() -> None:
    constant, per_byte, per_tensor = fit(samples_of(1), "capture")
    assert constant == pytest.approx(0.0, abs=1e-9)
    assert (1 / per_byte, per_tensor) == pytest.approx((10e9, 4e-6))


def test_a_fit_of_noise_leaves_no_infinite_rate() -> None:
    """As on a machine where something else ran while the small shares were measured."""
    times = {1 << 20: 0.5, 1 << 24: 0.3, 1 << 27: 0.1}
    samples = [Sample(1, nbytes, 16, {"capture": seconds}) for nbytes, seconds in times.items()]
    constant, per_byte, per_tensor = fit(samples, "capture")
    assert per_byte == pytest.approx(0.1 / (1 << 27))
    assert constant >= 0 and per_tensor >= 0 and math.isfinite(constant + per_tensor)
