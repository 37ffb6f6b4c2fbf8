"""The bill and the space of a campaign, from its runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.budget.bill import FEWER, LABELS, LEAVING, SPARES, bill_of_run, daily_bytes, space_of_run
from deeppart_simulator.campaign.failures import Scheduling, Waits
from deeppart_simulator.campaign.outcomes import summarize
from deeppart_simulator.campaign.plan import Planned
from deeppart_simulator.campaign.run import run
from deeppart_simulator.machine.record import Power, Price

from tests.simulator.campaign.jobs import DAY, busy

PLANNED, CADENCES = busy()
PRICE, POWER = Price(currency="USD", node_hour=2.0), Power(busy=1000.0, waiting=100.0)
PRICED = Planned(replace(PLANNED.job, machine=replace(PLANNED.job.machine, price=PRICE, power=POWER)))
RESULTS = [run(PLANNED, CADENCES, seed) for seed in (1, 2)]
SUMMARY = summarize(RESULTS)


def test_every_second_of_every_node_is_on_the_bill_once() -> None:
    """8 nodes and a spare one for 40 days."""
    found = bill_of_run(PRICED, CADENCES, SUMMARY)
    assert found.total.node_hours == pytest.approx(9 * 40 * 24) and found.total.money == pytest.approx(2 * 9 * 40 * 24)
    hours = {item.what: item.node_hours for item in found.items}
    assert hours.pop(SPARES) == pytest.approx(40 * 24) and set(hours) == {*LABELS.values(), FEWER}
    blocked_s = sum(result.buckets["blocked"] for result in RESULTS) / 2
    assert hours["blocked by checkpoints"] == pytest.approx(8 * blocked_s / 3600)
    assert hours["training lost"] == pytest.approx(8 * sum(result.lost_s for result in RESULTS) / 2 / 3600)


def test_a_job_that_keeps_its_nodes_has_no_fewer() -> None:
    planned, cadences = busy(elastic=False)
    summary = summarize([run(planned, cadences, 1)])
    found = {item.what: item.node_hours for item in bill_of_run(planned, cadences, summary).items}
    assert FEWER not in found and sum(found.values()) == pytest.approx(9 * 40 * 24)
    assert found["waiting for nodes"] > 0


def test_a_job_in_a_queue_holds_no_nodes() -> None:
    planned, cadences = busy(elastic=False)
    turns = Scheduling(limit_s=DAY, notice_s=3600.0, waits=Waits(DAY / 2))
    summary = summarize([run(planned, replace(cadences, scheduling=turns), 1)])
    queued = summary.shares["queued"].mean
    found = {item.what: item.node_hours for item in bill_of_run(planned, cadences, summary).items}
    assert 0.2 < queued < 0.5 and sum(found.values()) == pytest.approx(9 * 40 * 24 * (1 - queued))
    assert found[LEAVING] == pytest.approx(8 * 40 * 24 * summary.shares["leaving"].mean) and found[LEAVING] > 0


def test_nodes_draw_what_trains_while_they_train() -> None:
    found = {item.what: item for item in bill_of_run(PRICED, CADENCES, SUMMARY).items}
    for what, watts in (("useful training", 1.0), ("training lost", 1.0), ("slowed by the background", 1.0),
                        ("blocked by checkpoints", 0.1), ("down", 0.1), ("restoring", 0.1), (SPARES, 0.1)):  # fmt: skip
        assert found[what].kwh == pytest.approx(watts * found[what].node_hours), what


def test_bytes_a_day_are_those_of_the_run() -> None:
    node, drained = daily_bytes(PLANNED, CADENCES, SUMMARY)
    written = [result.nbytes for result in RESULTS]
    assert drained == pytest.approx(sum(each["persistent"] for each in written) / 2 / 40)
    on_nodes = sum(each["local"] + each["partner"] for each in written) / 2
    assert node == pytest.approx(on_nodes / 8 / 40) and CADENCES.wall_s == 40 * DAY


def test_the_space_is_that_of_the_cadence() -> None:
    """80 GB on 8 nodes; copies at every 2nd call, whose local parts stay too: 3 local ones of 10 GB, 2 copies."""
    space = space_of_run(PLANNED, CADENCES)
    assert space.node_bytes == {"local": pytest.approx(30e9), "partner": pytest.approx(20e9)}
    assert space.file_system_bytes == pytest.approx(4 * 80e9)
