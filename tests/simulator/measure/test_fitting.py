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


def test_planning_is_fitted_by_what_the_model_has_of_it() -> None:
    """A part that the model has no term for would be lost: here a millisecond for each 64 MiB."""
    samples = [
        Sample(2, nbytes, tensors, {"plan": 5e-3 + 2e-6 * tensors + 1e-3 * nbytes / (64 << 20)})
        for nbytes, tensors in ((64 << 20, 16), (128 << 20, 64), (64 << 20, 4096), (128 << 20, 8192))
    ]
    constant, per_byte, per_tensor = fit(samples, "plan")
    assert per_byte == 0.0 and per_tensor == pytest.approx(2e-6, rel=0.1)
    assert 6e-3 < constant < 7e-3
