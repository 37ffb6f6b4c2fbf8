"""Partners, parity groups and sets, and the stripes that parts are cut into."""

from __future__ import annotations

import itertools

import pytest

from deeppart.plan.redundancy import Nodes, Stripes, parity_groups, parity_sets

# --- topology ---------------------------------------------------------------------------------------------------------


def test_too_few_nodes_for_a_group() -> None:
    with pytest.raises(ValueError, match="3 nodes cannot make a group of 4"):
        parity_groups(Nodes.of(range(3)), 4)
    with pytest.raises(ValueError, match="3 nodes cannot make a group of 4"):
        parity_sets(Nodes.of(range(3)), 4, 1)


# --- placement --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tolerate", [-1, 0, 3, 4])
def test_impossible_tolerance(tolerate: int) -> None:
    with pytest.raises(ValueError, match="1 to 2 can be lost"):
        parity_sets(Nodes.of(range(3)), 3, tolerate)


# --- stripes ----------------------------------------------------------------------------------------------------------


def can_be_rebuilt(members: int, tolerate: int, lost: int, data: set[int], parity: set[int]) -> bool:
    """By counting, after the description of the layout: k blocks of each stripe that the lost member is in."""
    for stripe in range(members):
        keepers = {(stripe + j) % members for j in range(tolerate)}
        sources = set(range(members)) - keepers
        if lost in sources and len(sources & data) + len(keepers & parity) < members - tolerate:
            return False
    return True


@pytest.mark.parametrize(("members", "tolerate"), [(g, m) for g in range(2, 6) for m in range(1, g)])
def test_what_can_be_rebuilt_after_any_loss_of_parts_and_parity(members: int, tolerate: int) -> None:
    stripes = Stripes(members, tolerate, 64, 1000)
    places = range(members)
    subsets = [set(subset) for count in range(members + 1) for subset in itertools.combinations(places, count)]
    agreed = {True: 0, False: 0}
    for data, parity in itertools.product(subsets, subsets):
        for lost in set(places) - data:
            expected = can_be_rebuilt(members, tolerate, lost, data, parity)
            assert stripes.can_rebuild(lost, data, parity) is expected, (lost, data, parity)
            agreed[expected] += 1
            if len(set(places) - (data & parity)) <= tolerate:
                assert expected, "no more members than tolerated lack anything"
    assert all(agreed.values())
