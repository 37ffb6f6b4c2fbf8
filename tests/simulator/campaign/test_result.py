"""Where the time of one run goes."""

from __future__ import annotations

import pytest
from deeppart_simulator.campaign.outcomes import BUCKETS
from deeppart_simulator.campaign.run import run

from tests.simulator.campaign.jobs import busy


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
