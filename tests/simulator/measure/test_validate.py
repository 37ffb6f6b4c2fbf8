"""Predictions against measurements."""

from __future__ import annotations

import pytest
from deeppart_simulator.measure.validate import Comparison, Validation


def test_errors_of_a_validation() -> None:
    def comparison(predicted: float, measured: float, **noise: float) -> Comparison:
        return Comparison("plain", 1, 1, 1, None, "blocked", predicted, measured, measured, measured, **noise)

    good = Validation((comparison(1.04, 1.0), comparison(0.97, 1.0), comparison(1.12, 1.0)))
    assert good.median_error == pytest.approx(0.04) and good.worst_error == pytest.approx(0.12) and good.met
    assert Validation((comparison(1.0, 1.0), comparison(0.8, 1.0), comparison(1.0, 1.0))).met is False
    # An error smaller than what measurements of the same differ by counts, too, but may be the measurement's.
    noisy = Validation((comparison(1.3, 1.0, spread=0.4), comparison(1.3, 1.0, varied=0.2), comparison(1.0, 1.0)))
    assert len(noisy.missed) == 2 and not noisy.met
    assert [each.varied for each in noisy.of_the_model] == [0.2]
