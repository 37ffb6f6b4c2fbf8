"""Constants and slopes from measured checkpoints."""

from __future__ import annotations

import math

import pytest
from deeppart_simulator.measure.fitting import Sample, bytes_and_tensors, bytes_beside, fit, fit_planning

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
        for nbytes, tensors in ((64 << 20, 16), (128 << 20, 64), (96 << 20, 512), (64 << 20, 4096), (128 << 20, 8192))
    ]
    constant, per_tensor, _ = fit_planning(samples)
    assert per_tensor == pytest.approx(2e-6, rel=0.1)
    assert 6e-3 < constant < 7e-3


def test_planning_of_large_tensors_has_a_part_of_its_own() -> None:
    """They are digested one by one, in every call some of them: 8 us instead of 3."""
    shares = ((64 << 20, 16), (128 << 20, 512), (16 << 20, 256), (32 << 20, 4096), (64 << 20, 12288))
    samples = [
        Sample(4, nbytes, tensors, {"plan": 5e-3 + (8e-6 if nbytes > tensors << 16 else 3e-6) * tensors})
        for nbytes, tensors in shares
    ]
    assert fit_planning(samples) == pytest.approx((5e-3, 3e-6, 5e-6))


def test_planning_of_one_rank_has_no_part_that_the_model_has_not() -> None:
    """It compares nothing: what its large tensors take more would be in no prediction."""
    shares = ((64 << 20, 16), (128 << 20, 64), (160 << 20, 512), (32 << 20, 4096), (64 << 20, 12288))
    samples = [
        Sample(1, nbytes, tensors, {"plan": 1e-3 + (5e-6 if nbytes > tensors << 16 else 3e-6) * tensors})
        for nbytes, tensors in shares
    ]
    constant, per_tensor, per_large = fit_planning(samples)
    assert per_large == 0.0
    errors = [(constant + per_tensor * each.share_tensors) / each.seconds["plan"] - 1 for each in samples]
    assert max(errors) > 0 > min(errors), "some too long, some too short"


def test_bytes_are_fitted_beside_what_is_known() -> None:
    samples = [Sample(1, nbytes, 16, {"restore": 0.03 + nbytes / 2e9}) for nbytes in (64 << 20, 128 << 20)]
    assert 1 / bytes_beside(samples, "restore", [0.03, 0.03]) == pytest.approx(2e9)
    # What is known explains more than all: they take no less than a quarter of it.
    assert bytes_beside(samples, "restore", [1.0, 1.0]) == samples[1].seconds["restore"] / (128 << 20) / 4


def test_without_a_constant_two_samples_tell_bytes_from_tensors() -> None:
    samples = [Sample(1, 160 << 20, count, {"copy": (160 << 20) / 4e9 + 16e-6 * count}) for count in (512, 32)]
    assert bytes_and_tensors(samples, "copy") == pytest.approx((1 / 4e9, 16e-6))
