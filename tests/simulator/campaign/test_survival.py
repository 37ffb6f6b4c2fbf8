"""What survives a failure, against the planner's rules."""

from __future__ import annotations

import pytest
from deeppart_simulator.campaign.survival import JobNodes, Stored, place_of, recover
from deeppart_simulator.timing.stages import Protection

# --- what survives ----------------------------------------------------------------------------------------------------

EIGHT = tuple(range(8))


@pytest.mark.parametrize(
    ("levels", "protection", "lost", "level"),
    [
        ({"local"}, Protection(partner=False), set(), "local"),
        ({"local"}, Protection(partner=False), {3}, None),
        ({"local", "partner"}, Protection(), {3}, "partner"),
        ({"local", "partner"}, Protection(), {3, 5}, "partner"),
        ({"local", "partner"}, Protection(), {3, 4}, None),
        ({"local", "partner", "persistent"}, Protection(), {3, 4}, "persistent"),
        ({"local", "parity"}, Protection(partner=False, parity_group=4), {3}, "parity"),
        ({"local", "parity"}, Protection(partner=False, parity_group=4), {0, 2}, None),
        ({"local", "parity"}, Protection(partner=False, parity_group=4), {0, 1}, "parity"),
        ({"local", "parity"}, Protection(partner=False, parity_group=4, parity_tolerate=2), {0, 2}, "parity"),
        ({"persistent"}, Protection(local=False, partner=False), set(EIGHT), "persistent"),
        ({"local", "persistent"}, Protection(partner=False), set(EIGHT), "persistent"),
    ],
)  # fmt: skip
def test_what_survives(levels: set[str], protection: Protection, lost: set[int], level: str | None) -> None:
    found = recover([Stored(5, 1.0, EIGHT, levels, lost)], EIGHT, protection)
    assert (found.level if found else None) == level
    if found:
        assert sum(found.parts.values()) == 8


def test_the_newest_that_survives_is_taken() -> None:
    old = Stored(1, 10.0, EIGHT, {"local", "partner"})
    newer = Stored(2, 20.0, EIGHT, {"local"})
    assert recover([old, newer], EIGHT, Protection()).stored is newer
    for each in (old, newer):
        each.lost.add(6)
    assert recover([old, newer], EIGHT, Protection()).stored is old
    assert recover([], EIGHT, Protection()) is None


def test_nodes_that_are_no_longer_in_the_job_cannot_be_read() -> None:
    stored = Stored(1, 10.0, EIGHT, {"local", "partner"})
    assert recover([stored], (0, 1, 2, 4, 5, 6, 7, 9), Protection()).parts == {"local": 7, "partner": 1}
    assert recover([stored], EIGHT[:6], Protection()) is None  # node 6's copy was on node 7


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


def test_a_new_turn_has_other_nodes_and_all_of_them() -> None:
    nodes = JobNodes(3, 1)
    nodes.lose([0, 1])
    nodes.renew()
    assert [place_of(node) for node in nodes.used] == [0, 1, 2] and not set(nodes.used) & {0, 1, 2}
    assert (nodes.waiting, nodes.turn) == (1, 1)
