"""Goodput: how fast a job trains with a batch, the fit of that, the best batch, and advice."""

from __future__ import annotations

import sys
from dataclasses import astuple, replace

import pytest

from deeppart.elastic.goodput import Bounds, Goodput, GradientNoise, Limits, Throughput, advise, best_step, fit
from deeppart.errors import ConfigError
from tests.unit.elastic.goodput.models import BOUNDS, JOB, TRUE, measured

# --- How long a training step takes, and how fast a job learns --------------------------------------------------------


@pytest.mark.parametrize(("place", "value"), [(0, -1.0), (1, float("nan")), (6, 0.5), (6, 11.0), (3, float("inf"))])
def test_impossible_parameters(place: int, value: float) -> None:
    parameters = list(astuple(TRUE))
    parameters[place] = value
    with pytest.raises(ConfigError, match="impossible"):
        Throughput(*parameters)


# --- The noise of gradients, and what it says of batches --------------------------------------------------------------


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


@pytest.mark.sweep(3, kinds=("noise",))
@pytest.mark.parametrize(("nodes", "ranks"), [(1, 1), (1, 3), (1, 4), (2, 8), (4, 16), (8, 32)])
@pytest.mark.parametrize("noise", [0.3, 30.0, 3000.0])
def test_the_best_of_all_batches_within_two_percent(nodes: int, ranks: int, noise: float) -> None:
    job = replace(JOB, noise=GradientNoise(1.0, noise, 32))
    found = best_step(job, nodes, ranks, BOUNDS)
    assert BOUNDS.batch <= found.batch <= BOUNDS.most_batch and found.local_batch <= BOUNDS.most_local
    assert found.goodput >= 0.98 * best_of_all(job, nodes, ranks, BOUNDS)
    assert found.local_batch == -(-found.batch // (ranks * (found.accumulation + 1)))


# --- Advice -----------------------------------------------------------------------------------------------------------


LIMITS = Limits(profiled_ranks=8, profiled_batch=256, node_ranks=4)


def test_the_largest_size_whose_ranks_do_their_share_pays() -> None:
    noises = GradientNoise(1.0, 0.1, 32), GradientNoise(1.0, 1e5, 32)
    few, many = (advise(replace(JOB, noise=noise), BOUNDS, LIMITS).best.ranks for noise in noises)
    assert few < many
    strict, lax = (advise(JOB, BOUNDS, LIMITS, worth=worth).best.ranks for worth in (0.95, 0.05))
    assert strict <= 2 < lax == max(advise(JOB, BOUNDS, LIMITS).sizes, key=lambda size: size.goodput).ranks
    assert max(size.per_rank for size in advise(JOB, BOUNDS, LIMITS).sizes) == 1.0
