"""Goodput: how fast a job trains with a batch, the fit of that, the best batch, and advice."""

from __future__ import annotations

import sys
from dataclasses import astuple, replace
from typing import Any

import pytest

from deeppart.errors import ConfigError
from deeppart.plan.goodput import (
    Bounds,
    Goodput,
    GradientNoise,
    Limits,
    Measured,
    Throughput,
    advise,
    best_step,
    better_step,
    fit,
    fixed_step,
)
from tests.unit.plan.goodput.models import BOUNDS, JOB, TRUE, measured

# --- How long a training step takes, and how fast a job learns --------------------------------------------------------


@pytest.mark.parametrize(("nodes", "ranks", "network"), [(1, 4, 0.01 + 2 * 0.0002), (2, 4, 0.03 + 2 * 0.0006)])
def test_the_slowest_link_counts_and_grows_with_the_ranks(nodes: int, ranks: int, network: float) -> None:
    assert float(TRUE.network_s(nodes, ranks)) == pytest.approx(network)


def test_overlap_lies_between_the_sum_and_the_longer_one() -> None:
    computing, network = 0.02 + 0.032, float(TRUE.network_s(2, 8))
    one_after_the_other = float(replace(TRUE, overlap=1.0).step_s(2, 8, 32))
    at_once = float(replace(TRUE, overlap=10.0).step_s(2, 8, 32))
    assert one_after_the_other == pytest.approx(computing + network)
    assert max(computing, network) < at_once < 1.02 * max(computing, network)
    assert at_once < float(TRUE.step_s(2, 8, 32)) < one_after_the_other


@pytest.mark.parametrize(("place", "value"), [(0, -1.0), (1, float("nan")), (6, 0.5), (6, 11.0), (3, float("inf"))])
def test_impossible_parameters(place: int, value: float) -> None:
    parameters = list(astuple(TRUE))
    parameters[place] = value
    with pytest.raises(ConfigError, match="impossible"):
        Throughput(*parameters)


def test_an_uneven_batch_takes_as_long_as_its_longest_share() -> None:
    even = float(JOB.of_batch(1, 4, 64, 16))
    assert even == pytest.approx(float(JOB.samples_per_s(1, 4, 16)))
    uneven = float(JOB.of_batch(1, 4, 62, 16))
    assert uneven == pytest.approx(62 / float(TRUE.step_s(1, 4, 16)) * float(JOB.noise.efficiency(62)))
    assert uneven < even


# --- The noise of gradients, and what it says of batches --------------------------------------------------------------


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


# --- The fit ----------------------------------------------------------------------------------------------------------


def test_known_parameters_are_found() -> None:
    found = fit(measured(TRUE))
    assert found.compute_s == pytest.approx(TRUE.compute_s, rel=0.01)
    assert found.sample_s == pytest.approx(TRUE.sample_s, rel=0.01)
    assert found.between_s == pytest.approx(TRUE.between_s, rel=0.03)
    assert found.within_s == pytest.approx(TRUE.within_s, rel=0.05)
    assert found.overlap == pytest.approx(TRUE.overlap, rel=0.03)


@pytest.mark.parametrize("overlap", [1.0, 2.5, 8.0])
def test_twice_the_ranks_are_predicted(overlap: float) -> None:
    true = Throughput(0.1, 0.01, 0.3, 0.002, 0.1, 0.001, overlap)
    found = fit(measured(true, noise=0.03))
    for local in (16, 32, 64):
        assert float(found.step_s(4, 16, local)) == pytest.approx(float(true.step_s(4, 16, local)), rel=0.06)


def test_nothing_measured() -> None:
    with pytest.raises(ConfigError, match="nothing was measured"):
        fit([Measured(1, 1, 32, None)])


def test_without_scipy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ConfigError, match=r"pip install 'deeppart\[elastic\]'"):
        fit(measured(TRUE))


# --- The best batch ---------------------------------------------------------------------------------------------------


def best_of_all(job: Goodput, nodes: int, ranks: int, bounds: Bounds) -> float:
    """The most goodput of any batch with any accumulation."""
    found = [0.0]
    for batch in range(max(bounds.batch, ranks * bounds.least_local), bounds.most_batch + 1):
        for accumulation in range(8 if bounds.accumulate else 1):
            local = -(-batch // (ranks * (accumulation + 1)))
            fits = bounds.least_local <= local <= bounds.most_local and batch >= ranks * (accumulation + 1)
            if fits and (ranks > 1 or batch == bounds.batch or accumulation):
                found.append(float(job.of_batch(nodes, ranks, batch, local, accumulation)))
    return max(found)


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 1), (1, 3), (1, 4), (2, 8), (4, 16), (8, 32)])
@pytest.mark.parametrize("noise", [0.3, 30.0, 3000.0])
def test_the_best_of_all_batches_within_two_percent(nodes: int, ranks: int, noise: float) -> None:
    job = replace(JOB, noise=GradientNoise(1.0, noise, 32))
    found = best_step(job, nodes, ranks, BOUNDS)
    assert BOUNDS.batch <= found.batch <= BOUNDS.most_batch and found.local_batch <= BOUNDS.most_local
    assert found.goodput >= 0.98 * best_of_all(job, nodes, ranks, BOUNDS)
    assert found.local_batch == -(-found.batch // (ranks * (found.accumulation + 1)))


def test_accumulation_only_where_it_is_allowed_and_for_one_rank_always() -> None:
    noisy = replace(JOB, noise=GradientNoise(1.0, 1e6, 32))
    assert best_step(noisy, 2, 8, BOUNDS).accumulation == 1
    assert best_step(noisy, 2, 8, replace(BOUNDS, accumulate=False)).batch == 8 * 64
    assert best_step(noisy, 1, 1, replace(BOUNDS, most_local=2048)).accumulation == 1


def test_a_batch_is_kept_unless_more_than_five_percent_is_gained() -> None:
    best = best_step(JOB, 1, 4, BOUNDS)
    near = next(b for b in range(best.batch, 32, -1) if fixed_step(JOB, 1, 4, b, BOUNDS).goodput < best.goodput / 1.05)
    assert better_step(JOB, 1, 4, BOUNDS, now=near + 4).batch == near + 4
    assert better_step(JOB, 1, 4, BOUNDS, now=near).batch == best.batch


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"batch": 2000}, {"least_local": 65}, {"least_local": 0}])
def test_bounds_that_leave_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="leave no batch"):
        replace(BOUNDS, **wrong)


# --- Advice -----------------------------------------------------------------------------------------------------------


LIMITS = Limits(profiled_ranks=8, profiled_batch=256, node_ranks=4)


def test_sizes_up_to_twice_what_was_measured() -> None:
    found = advise(JOB, BOUNDS, LIMITS, profiled=[1, 4, 8])
    assert [size.ranks for size in found.sizes] == [1, 2, 3, 4, 8, 12, 16]
    assert [size.ranks for size in found.sizes if size.profiled] == [1, 4, 8]
    assert [size.nodes for size in found.sizes] == [1, 1, 1, 1, 2, 3, 4]
    for size in found.sizes:
        assert size.goodput == pytest.approx(size.samples_per_s * size.efficiency)
        assert size.samples_per_s == pytest.approx(size.batch / size.step_s)
        assert size.batch == best_step(JOB, size.nodes, size.ranks, BOUNDS).batch


def test_the_largest_size_whose_ranks_do_their_share_pays() -> None:
    noises = GradientNoise(1.0, 0.1, 32), GradientNoise(1.0, 1e5, 32)
    few, many = (advise(replace(JOB, noise=noise), BOUNDS, LIMITS).best.ranks for noise in noises)
    assert few < many
    strict, lax = (advise(JOB, BOUNDS, LIMITS, worth=worth).best.ranks for worth in (0.95, 0.05))
    assert strict <= 2 < lax == max(advise(JOB, BOUNDS, LIMITS).sizes, key=lambda size: size.goodput).ranks
    assert max(size.per_rank for size in advise(JOB, BOUNDS, LIMITS).sizes) == 1.0


def test_sizes_that_no_batch_suits_are_left_out() -> None:
    few = replace(BOUNDS, most_batch=64, least_local=16)
    assert [size.ranks for size in advise(JOB, few, LIMITS).sizes] == [1, 2, 3, 4]
    with pytest.raises(ConfigError, match="no batch suits"):
        advise(JOB, few, LIMITS, ranks=[16])
