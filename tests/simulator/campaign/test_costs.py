"""What each level costs, and which failures need it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace
from functools import cache

import pytest
from deeppart_simulator.campaign.costs import (
    Rows,
    cadence_of,
    level_costs,
    share_beyond,
    survival,
    training_s,
)
from deeppart_simulator.campaign.plan import Cadences, Planned
from deeppart_simulator.campaign.run import run
from deeppart_simulator.campaign.survival import Stored, recover
from deeppart_simulator.machine.record import Failures, Restart
from deeppart_simulator.timing.stages import Job, Protection
from deeppart_simulator.workload.states import read_state

from deeppart.plan.interval import best
from tests.simulator.campaign.jobs import DAY, QUIET, planned


def test_which_level_a_class_of_failures_needs() -> None:
    failures = Failures(process=DAY, node=DAY, group=DAY, group_nodes=2, system=DAY)
    assert survival(planned(failures, ranks=8)).needs == {
        "process": "local", "node": "partner", "group": "partner", "system": "persistent",
    }  # fmt: skip
    alone = planned(failures, ranks=8, protection=Protection(partner=False))
    assert survival(alone).needs["node"] == "persistent"
    nothing = planned(failures, ranks=8, protection=Protection(persistent=False))
    assert survival(nothing).unprotected == ["system"]


@pytest.mark.parametrize("network", [1e8, 1e9, 1e15])
@pytest.mark.parametrize("share", [0.05, 0.5])
def test_a_flush_keeps_its_share_of_the_time_also_where_copies_hide_it(network: float, share: float) -> None:
    """With a slow network copies are complete after the flush, which adds nothing to when all is done."""
    machine = replace(
        QUIET,
        failures=Failures(node=DAY, system=DAY),
        network=replace(QUIET.network, bandwidth=network),
        persistent=replace(QUIET.persistent, write=2e9, node_write=1e9),
    )
    job = Job(read_state("tensors-8x10GB"), machine, 8, 1, flush_share=share)
    this = Planned(job)
    times = this.on(this.nodes).times
    hidden = times.complete()["persistent"] < times.complete()["partner"]
    assert hidden == (network == 1e8)
    cadence = best(level_costs(this))
    assert times.stages()["persistent"] == pytest.approx(40.0, rel=0.01)
    assert times.stages()["persistent"] <= share * cadence.interval_s("persistent") * 1.001


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
def test_the_share_is_that_of_all_rows_of_failures_that_the_planner_cannot_restore(
    level: str, protection: Protection, domain_nodes: int, struck: tuple[int, ...]
) -> None:
    """Rows of failures of single nodes, each set of nodes that may be out by its probability, until all is rebuilt."""

    @cache
    def is_lost(gone: frozenset[int]) -> bool:
        return recover([Stored(5, 1.0, EIGHT, {"local", level}, set(gone))], EIGHT, protection, domain_nodes) is None

    if is_lost(frozenset(struck)):
        pytest.skip("these nodes alone cannot be restored from there")
    for follows in (0.02, 0.4, 0.8):
        beyond = counted = 0.0
        sets = {frozenset[int](): 1.0}  # where the next failure of the row finds these nodes out, and all to be had
        while sum(sets.values()) > 1e-7:
            counted += sum(sets.values())
            beyond += sum(chance for gone, chance in sets.items() if is_lost(gone | set(struck)))
            after = defaultdict[frozenset[int], float](float)
            for (gone, chance), node in itertools.product(sets.items(), EIGHT):
                if not is_lost(gone | {node}):
                    after[gone | {node}] += chance * follows / len(EIGHT)
            sets = dict(after)
        found = share_beyond(level, struck, len(EIGHT), Rows(follows, 1 / len(EIGHT)), protection, domain_nodes)
        # Groups are taken one by one: of few nodes a failure takes none of one group that takes one of another.
        groups_apart = level == "parity" and len(struck) > 1 and protection.parity_group < len(EIGHT)
        assert found == pytest.approx(beyond / counted, rel=0.2 if groups_apart else 0.1), follows


def often_lost(protection: Protection, node_mtbf_s: float = 16 * DAY / 12) -> Planned:
    """A node of 16 is lost every two hours, or more often, and it takes half an hour to come back."""
    machine = replace(
        QUIET,
        failures=Failures(node=node_mtbf_s),
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
