"""Losses that come together: against the restart planner, set by set, and against campaigns."""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import replace

import pytest
from deeppart_simulator.campaign.coincidences import out_at_once, share_beyond, window_s
from deeppart_simulator.campaign.costs import cadence_of, level_costs, survival, training_s
from deeppart_simulator.campaign.plan import Cadences, Planned
from deeppart_simulator.campaign.run import run
from deeppart_simulator.campaign.survival import Stored, recover
from deeppart_simulator.machine.record import Failures, Restart
from deeppart_simulator.timing.stages import Job, Protection
from deeppart_simulator.workload.states import read_state

from tests.simulator.campaign.jobs import DAY, QUIET

EIGHT = tuple(range(8))


@pytest.mark.parametrize("struck", [(0,), (2, 3), (1, 5)])
@pytest.mark.parametrize(
    ("level", "protection", "domain_nodes"),
    [
        ("partner", Protection(), 0),
        ("partner", Protection(), 2),
        ("parity", Protection(partner=False, parity_group=4), 0),
        ("parity", Protection(partner=False, parity_group=4, parity_tolerate=2), 0),
        ("parity", Protection(partner=False, parity_group=4), 2),
        ("parity", Protection(partner=False, parity_group=8, parity_tolerate=3), 0),
    ],
)
def test_the_share_is_that_of_all_sets_of_nodes_that_the_planner_cannot_restore(
    level: str, protection: Protection, domain_nodes: int, struck: tuple[int, ...]
) -> None:
    """Every set of nodes that may be out at once, by its probability, of those of which the step can be restored."""
    alone = recover([Stored(5, 1.0, EIGHT, {"local", level}, set(struck))], EIGHT, protection, domain_nodes)
    if alone is None:
        pytest.skip("these nodes alone cannot be restored from there")

    def is_lost(gone: set[int]) -> bool:
        return recover([Stored(5, 1.0, EIGHT, {"local", level}, gone)], EIGHT, protection, domain_nodes) is None

    whole, beyond = [0] * len(EIGHT), [0] * len(EIGHT)  # sets of so many nodes
    for count in range(len(EIGHT)):
        for gone in itertools.combinations(EIGHT, count):
            if not is_lost(set(gone)):
                whole[count] += 1
                beyond[count] += is_lost({*struck, *gone})
    for out in (0.003, 0.15):
        shares = [out**count * (1 - out) ** (len(EIGHT) - count) for count in range(len(EIGHT))]
        expected = sum(map(operator.mul, shares, beyond)) / sum(map(operator.mul, shares, whole))
        found = share_beyond(level, struck, len(EIGHT), out, protection, domain_nodes)
        # Copies: the ring is taken for an endless one, and several struck nodes for one with their partners.
        assert found == pytest.approx(expected, rel=0.02 if out < 0.01 else 0.12 if level == "partner" else 1e-9)


def test_a_window_is_longer_where_failures_interrupt_it() -> None:
    assert window_s(0.0, 600.0) == 600.0
    assert window_s(1e-9, 600.0) == pytest.approx(600.0)
    assert window_s(1 / 600, 600.0) == pytest.approx(600 * (math.e - 1))
    assert math.isinf(window_s(1.0, 1e4))
    assert out_at_once(0.0, 600.0) == 0.0 and out_at_once(2.0, math.inf) == 1.0


def often_lost(protection: Protection) -> Planned:
    """A node is lost every two hours, and it takes half an hour to come back."""
    machine = replace(
        QUIET,
        failures=Failures(node=16 * DAY / 12),
        restart=Restart(detect=0.0, relaunch=1500.0, replace=300.0, repair=3600.0),
    )
    return Planned(Job(read_state("tensors-16x10GB"), machine, 16, 1, protection=protection))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("protection", [Protection(), Protection(partner=False, parity_group=8)])
def test_campaigns_come_back_from_the_file_system_as_often_as_is_expected(protection: Protection) -> None:
    planned = often_lost(protection)
    found = survival(planned)
    level, share = next(iter(found.shares["node"].items()))
    assert level in ("partner", "parity") and share + found.shares["node"]["persistent"] == pytest.approx(1.0)
    costs = level_costs(planned)
    cadence = cadence_of(costs, 1200.0, {"local": 1, level: 1, "persistent": 8})
    days = 120
    course = run(planned, Cadences(training_s(costs, cadence), dict(cadence.every), days * DAY, spares=8), 1)
    expected = found.shares["node"]["persistent"] * found.rates_per_s["node"] * days * DAY
    assert expected > 30
    assert course.recoveries["persistent"] == pytest.approx(expected, rel=0.35)
    assert 1 - course.useful_s / course.wall_s == pytest.approx(cadence.waste.total, rel=0.08)
