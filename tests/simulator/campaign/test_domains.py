"""The kind of groups that copies and parity keep apart."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from deeppart_simulator.campaign.plan import domain_nodes
from deeppart_simulator.campaign.survival import placement
from deeppart_simulator.machine.record import Failures, Group
from deeppart_simulator.timing.stages import Protection

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
