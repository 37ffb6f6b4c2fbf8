"""Failures, drawn at their rate."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from deeppart_simulator.campaign.failures import Size, classes, drawn, rates_per_s
from deeppart_simulator.machine.record import Failures, Group

from tests.simulator.campaign.jobs import DAY

# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [1.0, 0.7, 2.0])
def test_failures_come_at_their_rate(shape: float) -> None:
    failures = Failures(process=40 * DAY, node=10 * DAY, group=30 * DAY, group_nodes=4, system=20 * DAY, shape=shape)
    size = Size(ranks=16, nodes=8)
    wall = 20_000 * DAY
    found = list(itertools.takewhile(lambda f: f.at_s < wall, drawn(failures, size, np.random.default_rng(3))))
    for kind, rate in rates_per_s(failures, size).items():
        mine = [f for f in found if f.kind == kind]
        assert len(mine) == pytest.approx(rate * wall, rel=0.12), kind
    assert [f.at_s for f in found] == sorted(f.at_s for f in found)
    assert {f.nodes for f in found if f.kind == "group"} == {(0, 1, 2, 3), (4, 5, 6, 7)}
    assert {f.nodes for f in found if f.kind == "node"} == {(n,) for n in range(8)}
    assert {f.nodes for f in found if f.kind == "system"} == {tuple(range(8))}


def test_no_failures_at_all() -> None:
    assert list(drawn(Failures(), Size(4, 4), np.random.default_rng(1))) == []


def test_groups_of_each_kind_fail_whole_and_at_a_rate_of_their_own() -> None:
    """Ten nodes: four switches of three, the last with one node, and two halves."""
    groups = {"switch": Group(nodes=3, mtbf=50 * DAY), "power": Group(nodes=5, mtbf=200 * DAY)}
    failures, size = Failures(node=30 * DAY, groups=groups), Size(10, 10)
    assert classes(failures) == ("process", "node", "group", "switch", "power", "system")
    rates = rates_per_s(failures, size)
    assert [rates[kind] * DAY for kind in ("switch", "power", "group")] == pytest.approx([4 / 50, 2 / 200, 0])
    wall = 50_000 * DAY
    found = list(itertools.takewhile(lambda f: f.at_s < wall, drawn(failures, size, np.random.default_rng(3))))
    for kind in ("node", "switch", "power"):
        assert sum(f.kind == kind for f in found) == pytest.approx(rates[kind] * wall, rel=0.12)
    assert {f.nodes for f in found if f.kind == "switch"} == {(0, 1, 2), (3, 4, 5), (6, 7, 8), (9,)}
    assert {f.nodes for f in found if f.kind == "power"} == {(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)}
