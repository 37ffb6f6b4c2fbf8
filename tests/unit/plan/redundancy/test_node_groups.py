"""Partners and groups of nodes, worked out by hand."""

from __future__ import annotations

import pytest

from deeppart.plan.redundancy import (
    Nodes,
    parity_groups,
    parity_sets,
    partner_copies,
    partner_nodes,
)

# --- topology ---------------------------------------------------------------------------------------------------------


def test_nodes_from_ranks() -> None:
    nodes = Nodes.of([0, 1, 0, 2, 1], ["a", "b", "a"])
    assert nodes == Nodes(((0, 2), (1, 4), (3,)), ("a", "b", "a"))
    assert len(nodes) == 3 and nodes.by_domain() == [0, 2, 1]
    assert Nodes.of([0, 0, 1]) == Nodes(((0, 1), (2,)), ("", ""))


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


def test_two_nodes_are_each_others_partners() -> None:
    for domains in ("", "aa", "ab"):
        assert partner_nodes(Nodes.of(range(2), domains)) == (1, 0)


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
