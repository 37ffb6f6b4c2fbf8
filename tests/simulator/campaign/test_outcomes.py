"""Means of many runs, with confidence intervals."""

from __future__ import annotations

import pytest
from deeppart_simulator.campaign.outcomes import estimate, student, summarize
from deeppart_simulator.campaign.result import RunResult

# --- statistics -------------------------------------------------------------------------------------------------------


def test_confidence_intervals_are_those_of_student() -> None:
    assert student(9) == pytest.approx(2.2622, abs=1e-4)
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.low, found.high) == pytest.approx(
        (2.0, 2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-4
    )
    assert estimate([5.0]).low == estimate([5.0]).high == 5.0


def test_summaries() -> None:
    one = RunResult(1, 100.0, useful_s=80.0, failures={"node": 1}, recoveries={"partner": 1})
    two = RunResult(2, 100.0, useful_s=90.0, failures={"process": 2}, recoveries={"local": 2})
    summary = summarize([one, two])
    assert summary.efficiency.mean == pytest.approx(0.85)
    assert {kind: each.mean for kind, each in summary.failures.items()} == {"node": 0.5, "process": 1.0}
