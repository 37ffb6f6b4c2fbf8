"""The fit: known parameters are found again, published measurements are predicted, and its derivatives are right."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy.optimize import check_grad

from deeppart.errors import ConfigError
from deeppart.plan.goodput import Measured, Throughput, fit, fitting
from tests.unit.plan.goodput.models import TRUE, measured


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


def test_derivatives_are_those_of_what_is_minimised() -> None:
    data = fitting._data(measured(TRUE, noise=0.1), fitting.GROWTH_WEIGHT)
    for start in fitting._starts(data, *fitting._bounds(data)):
        value = check_grad(lambda x: fitting._error(x, data)[0], lambda x: fitting._error(x, data)[1], start)
        assert value < 1e-4 * max(1.0, float(np.linalg.norm(fitting._error(start, data)[1])))


def test_the_same_times_have_the_same_parameters() -> None:
    assert fit(measured(TRUE, noise=0.05)) == fit(measured(TRUE, noise=0.05))


def test_beginning_at_an_earlier_fit_finds_as_good_a_one() -> None:
    before = fit(measured(TRUE, sizes=((1, 1), (1, 2))))
    found = fit(measured(TRUE), near=before)
    assert float(found.step_s(4, 16, 32)) == pytest.approx(float(TRUE.step_s(4, 16, 32)), rel=0.1)


def test_what_was_not_measured_is_taken_for_little_worse() -> None:
    """Only one node was seen: another one is taken for a tenth slower than it."""
    found = fit(measured(TRUE, sizes=((1, 1), (1, 2), (1, 4))))
    assert found.between_s == pytest.approx(1.1 * found.within_s)
    alone = fit(measured(TRUE, sizes=((1, 1),)))
    assert float(alone.step_s(1, 1, 32)) == pytest.approx(float(TRUE.step_s(1, 1, 32)), rel=0.01)


def test_steps_of_one_rank_are_computing() -> None:
    """A job that never accumulates has measured it all the same."""
    times = [Measured(each.nodes, each.ranks, each.local_batch, each.step_s) for each in measured(TRUE)]
    found = fit(times)
    assert float(found.accumulated_s(64)) == pytest.approx(float(TRUE.accumulated_s(64)), rel=0.02)


def test_one_size_of_batch_is_shared_between_what_is_constant_and_what_is_not() -> None:
    found = fit([Measured(1, 1, 32, 0.05, 0.05)])
    assert found.compute_s == pytest.approx(0.025, rel=0.01)
    assert float(found.step_s(1, 1, 32)) == pytest.approx(0.05, rel=0.01)


def test_nothing_measured() -> None:
    with pytest.raises(ConfigError, match="nothing was measured"):
        fit([Measured(1, 1, 32, None)])


def test_without_scipy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ConfigError, match=r"pip install 'deeppart\[elastic\]'"):
        fit(measured(TRUE))
