"""Partners, parity groups and sets, and the stripes that parts are cut into."""

from __future__ import annotations

import itertools

import pytest

from deeppart.plan.redundancy import (
    Copy,
    Member,
    Nodes,
    ParitySet,
    Stripes,
    parity_groups,
    parity_sets,
    partner_copies,
    partner_nodes,
)

# --- topology ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("domains", "partners"),
    [
        ("", (1, 2, 3, 0)),
        ("aaaa", (1, 2, 3, 0)),
        ("abcd", (1, 2, 3, 0)),
        ("aabb", (2, 3, 0, 1)),
        ("abab", (1, 0, 3, 2)),
        ("abba", (1, 0, 3, 2)),
        ("aaab", (3, 0, 1, 2)),  # one domain has more than half: only one of its nodes can have a partner outside
        ("baaa", (3, 0, 1, 2)),
    ],
)
def test_partners_of_four_nodes(domains: str, partners: tuple[int, ...]) -> None:
    assert partner_nodes(Nodes.of(range(4), domains)) == partners


def test_a_node_alone_has_no_partner() -> None:
    for nodes in (Nodes.of([0, 0]), Nodes.of([])):
        with pytest.raises(ValueError, match="second node"):
            partner_nodes(nodes)
        with pytest.raises(ValueError, match="second node"):
            partner_copies(nodes)


def test_groups_of_ten_nodes() -> None:
    assert parity_groups(Nodes.of(range(10)), 4) == ((0, 2, 4, 6, 8), (1, 3, 5, 7, 9))
    assert parity_groups(Nodes.of(range(10)), 3) == ((0, 3, 6, 9), (1, 4, 7), (2, 5, 8))
    assert parity_groups(Nodes.of(range(10)), 6) == (tuple(range(10)),)
    assert parity_groups(Nodes.of(range(6), "aaabbb"), 3) == ((0, 2, 4), (1, 3, 5))
    assert parity_groups(Nodes.of(range(6), "ababab"), 3) == ((0, 3, 4), (1, 2, 5)), "not all of a domain together"


def test_too_few_nodes_for_a_group() -> None:
    with pytest.raises(ValueError, match="3 nodes cannot make a group of 4"):
        parity_groups(Nodes.of(range(3)), 4)
    with pytest.raises(ValueError, match="3 nodes cannot make a group of 4"):
        parity_sets(Nodes.of(range(3)), 4, 1)


# --- placement --------------------------------------------------------------------------------------------------------


def test_copies_of_parts_that_lie_elsewhere_than_at_a_save() -> None:
    """After a restore of five parts on two ranks."""
    nodes = Nodes.of([0, 1])
    held = [[(4, 0), (1, 0)], [(0, 1), (2, 1), (3, 1)]]
    copies = partner_copies(nodes, held)
    assert copies == (Copy(0, 1, 0), Copy(1, 0, 1), Copy(2, 1, 0), Copy(3, 1, 0), Copy(4, 0, 1))


def test_sets_of_parts_that_lie_elsewhere_than_at_a_save() -> None:
    """More parts than ranks: a rank stands in several sets."""
    nodes = Nodes.of([0, 1, 1])
    assert parity_sets(nodes, 2, 1, [[(3, 0), (0, 0)], [(2, 1)]]) == (
        ParitySet((Member(0, 3), Member(1, 2)), 1),
        ParitySet((Member(0, 0), Member(2, None)), 1),
    )
    assert parity_sets(nodes, 2, 1, [[], []]) == ()


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


@pytest.mark.parametrize(("members", "tolerate"), [(g, m) for g in range(2, 9) for m in range(1, g)])
def test_as_many_members_as_promised_can_be_lost_and_no_more(members: int, tolerate: int) -> None:
    stripes = Stripes(members, tolerate, 64, 1000)
    for count in range(1, members + 1):
        for gone in itertools.combinations(range(members), count):
            left = set(range(members)) - set(gone)
            assert {stripes.can_rebuild(lost, left, left) for lost in gone} == {count <= tolerate}, gone
