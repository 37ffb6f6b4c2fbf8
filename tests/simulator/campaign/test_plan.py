"""What a campaign works out before it begins."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from deeppart_simulator.campaign.plan import Cadences
from deeppart_simulator.campaign.run import run

from deeppart.errors import ConfigError
from tests.simulator.campaign.jobs import DAY, busy


def test_checkpoints_wait_for_room() -> None:
    this, cadences = busy()
    quick = replace(cadences, period_s=5.0, every={"local": 1, "persistent": 1}, wall_s=DAY / 4)
    result = run(this, quick, 1, ())
    assert result.buckets["waiting"] > 0.3 * result.wall_s
    assert result.checkpoints["persistent"] <= result.checkpoints["local"] <= result.checkpoints["persistent"] + 2


@pytest.mark.parametrize(
    ("period", "every"), [(0.0, {"local": 1}), (math.inf, {"local": 1}), (1.0, {"cloud": 1}), (1.0, {"local": -1})]
)
def test_impossible_cadences_are_refused(period: float, every: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Cadences(period, every, DAY)
