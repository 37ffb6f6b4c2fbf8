"""Means of many runs, with confidence intervals."""

from __future__ import annotations

import pytest
from deeppart_simulator.campaign.outcomes import BUCKETS, estimate, student
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
