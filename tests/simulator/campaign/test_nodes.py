"""The nodes of a job, and the places at which they stand."""

from __future__ import annotations

from deeppart_simulator.campaign.survival import JobNodes, place_of


def test_a_spare_takes_the_place_of_the_lost_one_and_is_another_node() -> None:
    nodes = JobNodes(4, 2)
    assert nodes.lose([2]) == [2] and nodes.missing == 1
    nodes.take()
    assert [place_of(node) for node in nodes.used] == [0, 1, 2, 3] and nodes.used[2] != 2
    assert nodes.at([2]) == [nodes.used[2]] and (nodes.missing, nodes.waiting) == (0, 1)
    again = nodes.lose([2, 3])
    assert len(again) == 2 and again[0] not in (2, 3)
    nodes.take()
    assert [place_of(node) for node in nodes.used] == [0, 1, 2] and nodes.missing == 1
    nodes.repaired()
    nodes.take()
    assert len(set(nodes.used)) == 4 and not set(nodes.used) & {2, 3, *again}


def test_what_strikes_an_empty_place_strikes_nobody() -> None:
    nodes = JobNodes(3, 0)
    nodes.lose([1])
    assert nodes.lose([1]) == [] == nodes.at([1]) and nodes.used == [0, 2]


def test_nodes_that_the_layout_cannot_use_come_back_as_they_were() -> None:
    nodes = JobNodes(4, 0)
    nodes.lose([0])
    nodes.keep(2)
    assert (nodes.used, nodes.waiting, nodes.missing) == ([1, 2], 1, 2)
    nodes.repaired()
    nodes.take()
    assert nodes.used[1:] == [1, 2, 3] and place_of(nodes.used[0]) == 0 and nodes.used[0] != 0


def test_a_new_turn_has_other_nodes_and_all_of_them() -> None:
    nodes = JobNodes(3, 1)
    nodes.lose([0, 1])
    nodes.renew()
    assert [place_of(node) for node in nodes.used] == [0, 1, 2] and not set(nodes.used) & {0, 1, 2}
    assert (nodes.waiting, nodes.turn) == (1, 1)
