"""Bills by hand: hours, money and energy, with each of the prices and without."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.budget import (
    FEWER,
    SHARE_WORDS,
    SPARES,
    USEFUL,
    Way,
    bill,
    bill_of_run,
    costs_of_blocking,
    item,
    missing,
    ways_of,
)
from deeppart_simulator.campaign.failures import Scheduling, Waits
from deeppart_simulator.campaign.outcomes import summarize
from deeppart_simulator.campaign.plan import Planned
from deeppart_simulator.campaign.run import run
from deeppart_simulator.machine.record import Power, Price
from deeppart_simulator.timing.scale import study

from tests.simulator.campaign.jobs import DAY, busy
from tests.simulator.timing.jobs import MACHINE, job

PRICED = replace(MACHINE, price=Price(currency="USD", node_hour=3.0), power=Power(busy=2000.0, waiting=500.0))
SHARES = {USEFUL: 0.9, "blocked": 0.06, "lost": 0.04}


def test_a_day_of_ten_nodes() -> None:
    """240 node-hours at 3 USD; 225.6 of them at 2 kW, the 14.4 that are blocked at 0.5 kW."""
    found = bill(PRICED, 10, 86400.0, SHARES, busy=["lost"])
    assert [each.node_hours for each in found.items] == pytest.approx([216.0, 14.4, 9.6])
    assert found.total.node_hours == pytest.approx(240) and found.total.money == pytest.approx(720)
    assert found.total.kwh == pytest.approx(225.6 * 2 + 14.4 * 0.5)
    assert found.lost.node_hours == pytest.approx(24) and found.lost.money == pytest.approx(72)
    assert found.lost.kwh == pytest.approx(9.6 * 2 + 14.4 * 0.5) and found.currency == "USD"


def test_if_all_was_useful_nothing_was_lost_rather_than_something_unknown() -> None:
    found = bill(PRICED, 10, 3600.0, {USEFUL: 1.0})
    assert (found.lost.node_hours, found.lost.money, found.lost.kwh) == (0, 0, 0)
    assert bill(MACHINE, 10, 3600.0, {USEFUL: 1.0}).lost.money is None


def test_spare_nodes_are_paid_for_and_wait() -> None:
    found = bill(PRICED, 10, 86400.0, SHARES, busy=["lost"], spares=2)
    last = found.items[-1]
    assert (last.what, last.node_hours, last.kwh) == (SPARES, pytest.approx(48), pytest.approx(24))
    assert found.total.node_hours == pytest.approx(288) and found.lost.node_hours == pytest.approx(72)


def test_energy_has_a_price_of_its_own_or_adds_to_that_of_the_hour() -> None:
    owned = replace(PRICED, price=Price(currency="EUR", kwh=0.25))
    assert item(owned, "x", 10.0, busy=True).money == pytest.approx(10 * 2 * 0.25)
    both = replace(PRICED, price=Price(currency="EUR", node_hour=3.0, kwh=0.25))
    assert item(both, "x", 10.0, busy=True).money == pytest.approx(10 * 3 + 10 * 2 * 0.25)


def test_a_node_waits_as_busy_as_it_trains_if_nothing_else_is_said() -> None:
    machine = replace(PRICED, power=Power(busy=2000.0))
    assert item(machine, "x", 10.0, busy=False).kwh == item(machine, "x", 10.0, busy=True).kwh == pytest.approx(20)


def test_what_is_not_known_is_left_out_and_its_key_said() -> None:
    found = bill(MACHINE, 10, 3600.0, SHARES)
    assert found.total.node_hours == pytest.approx(10)
    assert found.total.money is None and found.lost.kwh is None and all(each.money is None for each in found.items)
    assert [line.split(":")[0] for line in missing(MACHINE)] == ["no money", "no energy"]
    assert "[price] node_hour" in missing(MACHINE)[0] and "[power] busy" in missing(MACHINE)[1]
    assert missing(PRICED) == []
    energy_alone = replace(MACHINE, price=Price(currency="EUR", kwh=0.2))
    both = replace(MACHINE, price=Price(currency="EUR", node_hour=3.0, kwh=0.2))
    assert missing(both)[0].startswith("money without that for energy") and item(both, "x", 2.0, busy=True).money == 6
    assert "needs [power] busy" in missing(energy_alone)[0] and item(energy_alone, "x", 1.0, busy=True).money is None


PLANNED, CADENCES = busy()
PRICE, POWER = Price(currency="USD", node_hour=2.0), Power(busy=1000.0, waiting=100.0)
PRICED_RUNS = Planned(replace(PLANNED.job, machine=replace(PLANNED.job.machine, price=PRICE, power=POWER)))
RESULTS = [run(PLANNED, CADENCES, seed) for seed in (1, 2)]
SUMMARY = summarize(RESULTS)


def test_every_second_of_every_node_is_on_the_bill_once() -> None:
    """8 nodes and a spare one for 40 days."""
    found = bill_of_run(PRICED_RUNS, CADENCES, SUMMARY)
    assert found.total.node_hours == pytest.approx(9 * 40 * 24) and found.total.money == pytest.approx(2 * 9 * 40 * 24)
    hours = {item.what: item.node_hours for item in found.items}
    assert hours.pop(SPARES) == pytest.approx(40 * 24) and set(hours) == {*SHARE_WORDS.values(), FEWER} - {
        SHARE_WORDS["leaving"],
        SHARE_WORDS["queued"],
    }
    blocked_s = sum(result.buckets["blocked"] for result in RESULTS) / 2
    assert hours["blocked by checkpoints"] == pytest.approx(8 * blocked_s / 3600)
    assert hours["training lost"] == pytest.approx(8 * sum(result.lost_s for result in RESULTS) / 2 / 3600)


def test_a_job_in_a_queue_holds_no_nodes() -> None:
    planned, cadences = busy(elastic=False)
    turns = Scheduling(limit_s=DAY, notice_s=3600.0, waits=Waits(DAY / 2))
    summary = summarize([run(planned, replace(cadences, scheduling=turns), 1)])
    queued = summary.shares["queued"].mean
    found = {item.what: item.node_hours for item in bill_of_run(planned, cadences, summary).items}
    assert 0.2 < queued < 0.5 and sum(found.values()) == pytest.approx(9 * 40 * 24 * (1 - queued))
    assert (
        found[SHARE_WORDS["leaving"]] == pytest.approx(8 * 40 * 24 * summary.shares["leaving"].mean)
        and found[SHARE_WORDS["leaving"]] > 0
    )


def test_nodes_draw_what_trains_while_they_train() -> None:
    found = {item.what: item for item in bill_of_run(PRICED_RUNS, CADENCES, SUMMARY).items}
    for what, watts in (("useful training", 1.0), ("training lost", 1.0), ("slowed by the background", 1.0),
                        ("blocked by checkpoints", 0.1), ("down", 0.1), ("restoring", 0.1), (SPARES, 0.1)):  # fmt: skip
        assert found[what].kwh == pytest.approx(watts * found[what].node_hours), what


PRICED_GOODPUT = replace(MACHINE, price=Price(currency="USD", node_hour=3.0), power=Power(busy=2000.0, waiting=500.0))


def test_a_row_by_hand() -> None:
    """A tenth of 30 days of 100 nodes: 7,200 node-hours, 21,600 USD, and 3.6 MWh at 0.5 kW."""
    (row,) = costs_of_blocking(PRICED_GOODPUT, 100, [9.0], [1.0], [], days=30)
    assert row.lost == pytest.approx(0.1)
    assert (row.cost.node_hours, row.cost.money, row.cost.kwh) == pytest.approx((7200, 21600, 3600))
    (half,) = costs_of_blocking(PRICED_GOODPUT, 100, [9.0], [1.0], [], days=15)
    assert half.cost.money == pytest.approx(10800)


def test_ways_stand_where_their_time_puts_them_and_nothing_is_said_twice() -> None:
    rows = costs_of_blocking(
        PRICED_GOODPUT, 1, [600.0, 60.0, 60.0], [1.0, 0.1, 1.0], [Way("this", 0.5), Way("that", 7.0)], days=1
    )
    assert [row.period_s for row in rows] == [60.0] * 4 + [600.0] * 4
    assert [(row.blocked_s, row.way) for row in rows[:4]] == [(0.1, ""), (0.5, "this"), (1.0, ""), (7.0, "that")]
    lost = [row.lost for row in rows[:4]]
    assert lost == sorted(lost) and rows[4].lost < rows[0].lost


def test_ways_are_as_scale_predicts_them() -> None:
    """16 GB on 4 nodes: the copy at 20 GB/s of a node; whole tensors straight to 4 GB/s of four nodes, after it."""
    ways = {way.name: way.blocked_s for way in ways_of(job())}
    points = {point.strategy: point for point in study(job(), [16], ["deeppart", "rank0"])}
    assert ways["deeppart"] == pytest.approx(points["deeppart"].blocked_s) == pytest.approx(0.2)
    assert ways["DCP-like, in the background"] == pytest.approx(0.2)
    assert ways["DCP-like, waited for"] == pytest.approx(0.2 + 4.0)
    assert ways["torch.save on rank 0"] == pytest.approx(points["rank0"].blocked_s)
    assert ways["torch.save on rank 0"] > 16 / 1.24
