"""The fit: known parameters are found again, published measurements are predicted, and its derivatives are right."""

from __future__ import annotations

import sys

import pytest

from deeppart.errors import ConfigError
from deeppart.plan.goodput import Measured, Throughput, fit
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


def test_nothing_measured() -> None:
    with pytest.raises(ConfigError, match="nothing was measured"):
        fit([Measured(1, 1, 32, None)])


def test_without_scipy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ConfigError, match=r"pip install 'deeppart\[elastic\]'"):
        fit(measured(TRUE))
