"""What a campaign works out before it begins."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from deeppart_simulator.campaign.plan import Cadences, Planned, usual_spares
from deeppart_simulator.campaign.run import run
from deeppart_simulator.machine.record import Failures, Group, Restart
from deeppart_simulator.timing.stages import Job, Protection
from deeppart_simulator.workload.states import read_state

from deeppart.errors import ConfigError
from tests.simulator.campaign.jobs import DAY, QUIET, busy


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


def test_spares_are_for_what_fails_in_groups_and_for_as_long_as_these_are_away() -> None:
    """64 nodes: one is under repair on average, and of 8 racks of 8 nodes half a node more, or eight times that."""

    def spares(repair: float) -> int:
        rack = Group(nodes=8, mtbf=128 * DAY, repair=repair)
        failures = Failures(node=64 * DAY, groups={"rack": rack})
        machine = replace(QUIET, nodes=1000, failures=failures, restart=Restart(repair=DAY))
        found: int = usual_spares(Planned(Job(read_state("tensors-64x1KB"), machine, 64, 1)))
        return found

    for repair, away in ((math.inf, 1.5), (DAY, 1.5), (8 * DAY, 5.0)):
        assert spares(repair) == math.ceil(away + 3 * math.sqrt(away))


SWITCH, POWER = Group(nodes=2, mtbf=1e8), Group(nodes=8, mtbf=1e9)
BOTH = Failures(groups={"switch": SWITCH, "power": POWER})
COPIES, PARITY = Protection(partner=True), Protection(partner=False, parity_group=4, parity_tolerate=1)
