"""Estimates of |G|^2 and of the variance, on gradients that are known, with Gaussian noise."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from deeppart.elastic.goodput import gain
from deeppart.elastic.noise import NoiseScale, Norms

SQUARED, VARIANCE = 4.0, 50.0  # of the gradient; of one sample's noise, all elements together
ELEMENTS = 40


def drawn(counts: list[int], steps: int) -> npt.NDArray[np.float64]:
    """float64[steps, ranks, elements]: mean gradients of ranks with so many samples each."""
    gradient = np.full(ELEMENTS, math.sqrt(SQUARED / ELEMENTS))
    noise = np.random.default_rng(1).normal(size=(steps, len(counts), ELEMENTS)) * math.sqrt(VARIANCE / ELEMENTS)
    found: npt.NDArray[np.float64] = gradient + noise / np.sqrt(np.array(counts))[:, None]
    return found


def squared(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = (vectors**2).sum(-1)
    return found


@pytest.mark.parametrize("counts", [[4, 4], [3, 3, 2, 2], [1, 1, 1, 1, 1, 1], [9, 1], [5, 1, 1]])
@pytest.mark.parametrize("base", [1, 4, 32])
def test_less_than_two_percent_of_bias_on_gaussians(counts: list[int], base: int) -> None:
    """Over 40,000 steps, of ranks with different numbers of samples; what is estimated is linear in the norms."""
    gradients, shares = drawn(counts, 40_000), np.array(counts) / sum(counts)
    of_parts, of_mean = squared(gradients) @ shares, squared(shares @ gradients)
    norms = Norms((float(of_parts.mean()),), (float(of_mean.mean()),), len(counts), sum(counts) / base)
    assert norms.squared_gradient()[0] == pytest.approx(SQUARED, rel=0.02)
    assert norms.variance()[0] == pytest.approx(VARIANCE / base, rel=0.02)


def test_averages_have_no_bias_of_their_beginning_and_count_steps_by_their_scale() -> None:
    noise = NoiseScale(2)
    assert noise.by_group() == [(1.0, 0.0)] * 2 and not noise.known
    noise.update(Norms((5.0, 9.0), (3.0, 4.0), 2, 1.0))
    assert noise.by_group() == pytest.approx([(1.0, 2.0), (0.001 * 0, 5.0)], abs=1e-12)  # negative |G|^2: 0
    assert noise.squared_gradient() == pytest.approx(1.0) and noise.variance() == pytest.approx(7.0)
    one, several = NoiseScale(1), NoiseScale(1)
    first, second = Norms((5.0,), (3.0,), 2, 1.0), Norms((9.0,), (8.0,), 2, 1.0)
    one.update(first)
    several.update(first)
    for _ in range(4):
        several.update(second)
    one.update(Norms((9.0,), (8.0,), 2, 4.0))
    assert one.squared_gradient() == pytest.approx(several.squared_gradient())


def test_what_is_not_finite_is_left_out_and_what_has_a_bias_is_given_up_for_what_has_none() -> None:
    noise = NoiseScale(1)
    noise.update(Norms((5.0,), (3.0,), 2, 1.0))
    for value in (math.nan, math.inf):
        noise.update(Norms((value,), (3.0,), 2, 1.0))
    assert noise.squared_gradient() == pytest.approx(1.0)
    noise.update(Norms((9.0,), (8.0,), 2, 1.0, biased=True))  # one rank goes on with what several knew
    assert noise.squared_gradient() == pytest.approx((0.999 * 1.0 + 7.0) / 1.999)
    noise.update(Norms((9.0,), (8.0,), 2, 1.0, biased=True))
    noise.update(Norms((6.0,), (4.0,), 2, 1.0))  # several again
    assert noise.squared_gradient() == pytest.approx(2.0)
    again = NoiseScale(1)
    again.load_state_dict(noise.state_dict())
    assert again.state_dict() == noise.state_dict() and again.by_group() == noise.by_group()


def test_a_step_is_worth_from_one_to_its_scale() -> None:
    assert gain(0.0, 1.0, 8.0) == 8.0  # nothing but noise: batches are averages
    assert gain(1.0, 0.0, 8.0) == 1.0  # no noise: a larger batch is no better
    assert gain(1.0, 8.0, 8.0) == pytest.approx(4.5)
    assert gain(0.0, 0.0, 8.0) == 1.0
