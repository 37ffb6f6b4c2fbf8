"""Means of many runs, with confidence intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from deeppart_simulator.campaign.outcomes import BUCKETS, RunResult, estimate, share_estimate, student, summarize
from deeppart_simulator.campaign.run import run

from tests.simulator.campaign.jobs import busy

# --- statistics -------------------------------------------------------------------------------------------------------


def test_confidence_intervals_are_those_of_student() -> None:
    assert student(9) == pytest.approx(2.2622, abs=1e-4)
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.low, found.high) == pytest.approx(
        (2.0, max(0.0, 2 - 4.3027 / 3**0.5), 2 + 4.3027 / 3**0.5), abs=1e-4
    )
    found = estimate([11.0, 12.0, 13.0])
    assert (found.low, found.high) == pytest.approx((12 - 4.3027 / 3**0.5, 12 + 4.3027 / 3**0.5), abs=1e-4)
    assert estimate([5.0]).low == estimate([5.0]).high == 5.0


@pytest.mark.parametrize(
    "values",
    [[0.0, 0.0, 0.02], [1.0, 1.0, 0.97], [0.0, 1.0], [0.5, 0.6], [1.0, math.nextafter(1.0, 0.0)], [0.0, 1e-300]],
)
def test_intervals_of_shares_stay_within_0_and_1(values: list[float]) -> None:
    found = share_estimate(values)
    assert 0 <= found.low <= found.mean <= found.high <= 1
    assert found.low < found.high or found.mean in (0.0, 1.0)


def test_the_interval_of_shares_holds_the_true_mean_as_often_as_it_says() -> None:
    """Of small shares, where Student's t would reach below 0."""
    random = np.random.default_rng(1)
    runs = [share_estimate(random.beta(2.0, 98.0, 10).tolist()) for _ in range(2000)]
    held = sum(each.low <= 0.02 <= each.high for each in runs) / len(runs)
    assert 0.92 <= held <= 0.98


def test_summaries() -> None:
    one = RunResult(1, 100.0, useful_s=80.0, failures={"node": 1}, recoveries={"partner": 1})
    two = RunResult(2, 100.0, useful_s=90.0, failures={"process": 2}, recoveries={"local": 2})
    summary = summarize([one, two])
    assert summary.efficiency.mean == pytest.approx(0.85)
    assert {kind: each.mean for kind, each in summary.failures.items()} == {"node": 0.5, "process": 1.0}


@pytest.mark.parametrize("elastic", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_time_adds_up(seed: int, elastic: bool) -> None:
    this, cadences = busy(elastic=elastic)
    result = run(this, cadences, seed)
    assert set(result.buckets) == set(BUCKETS)
    assert sum(result.buckets.values()) == pytest.approx(cadences.wall_s, rel=1e-9)
    if not elastic:  # all nodes at full speed: training is useful, lost or slowed
        known = result.useful_s + result.lost_s + result.slowed_s
        assert known == pytest.approx(result.buckets["training"], rel=1e-9)
        assert result.least_nodes == this.nodes
    assert 0 < result.efficiency < 1
    # A failure during a restart is no recovery of its own.
    assert sum(result.recoveries.values()) <= sum(result.failures.values())
