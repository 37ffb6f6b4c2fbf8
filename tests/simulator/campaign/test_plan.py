"""What a campaign works out before it begins."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from deeppart_simulator.campaign.plan import Cadences, Planned, domain_nodes, usual_spares
from deeppart_simulator.campaign.run import run
from deeppart_simulator.campaign.survival import placement
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


def test_one_kind_is_kept_apart_as_it_is() -> None:
    assert domain_nodes(Failures(group=1e8, group_nodes=5), 16, COPIES) == 5
    assert domain_nodes(Failures(groups={"power": POWER}), 16, PARITY) == 8
    assert domain_nodes(Failures(groups={"power": Group(nodes=8, mtbf=math.inf)}), 16, COPIES) == 0
    assert domain_nodes(Failures(), 16, COPIES) == 0


def test_of_two_the_larger_one_where_there_is_a_second_of_it() -> None:
    assert domain_nodes(BOTH, 16, COPIES) == 8 and domain_nodes(BOTH, 8, COPIES) == 2
    partner = placement(tuple(range(16)), COPIES, 8).partner
    assert all(partner[node] // 8 != node // 8 and partner[node] // 2 != node // 2 for node in range(16))


@pytest.mark.parametrize(("nodes", "most"), [(16, 2), (32, 1)])
def test_parity_keeps_apart_what_it_has_members_for(nodes: int, most: int) -> None:
    """A group of 4 loses one member at most: with 16 nodes there are two of 8, so only the switches are kept apart."""
    groups = placement(tuple(range(nodes)), PARITY, domain_nodes(BOTH, nodes, PARITY)).group
    for size, expected in ((2, 1), (8, most)):
        assert max(max(Counter(place // size for place in group).values()) for group in groups) == expected


def test_the_kind_that_fails_more_often_wins_where_not_both_can_be_kept_apart() -> None:
    """Groups of 3 and of 4 across each other, six nodes: a partner in another one of 4 may be in the same one of 3."""

    def kinds(three: float, four: float) -> Failures:
        return Failures(groups={"three": Group(nodes=3, mtbf=three), "four": Group(nodes=4, mtbf=four)})

    assert domain_nodes(kinds(1e6, 1e9), 6, COPIES) == 3
    assert domain_nodes(kinds(1e9, 1e6), 8, COPIES) == 4
