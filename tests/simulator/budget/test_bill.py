"""Bills by hand: hours and money, with a price and without."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.budget import (
    FEWER,
    SHARE_WORDS,
    SPARES,
    USEFUL,
    bill,
    bill_of_run,
    missing,
)
from deeppart_simulator.campaign.failures import Scheduling, Waits
from deeppart_simulator.campaign.outcomes import summarize
from deeppart_simulator.campaign.plan import Planned
from deeppart_simulator.campaign.run import run
from deeppart_simulator.machine.record import Price

from tests.simulator.campaign.jobs import DAY, busy
from tests.simulator.timing.jobs import MACHINE

PRICED = replace(MACHINE, price=Price(currency="USD", node_hour=3.0))
SHARES = {USEFUL: 0.9, "blocked": 0.06, "lost": 0.04}


def test_a_day_of_ten_nodes() -> None:
    """240 node-hours at 3 USD."""
    found = bill(PRICED, 10, 86400.0, SHARES)
    assert [each.node_hours for each in found.items] == pytest.approx([216.0, 14.4, 9.6])
    assert found.total.node_hours == pytest.approx(240) and found.total.money == pytest.approx(720)
    assert found.lost.node_hours == pytest.approx(24) and found.lost.money == pytest.approx(72)
    assert found.currency == "USD"


def test_what_is_not_known_is_left_out_and_its_key_said() -> None:
    found = bill(MACHINE, 10, 3600.0, SHARES)
    assert found.total.node_hours == pytest.approx(10)
    assert found.total.money is None and found.lost.money is None and all(each.money is None for each in found.items)
    (line,) = missing(MACHINE)
    assert line.startswith("no money") and "[price] node_hour" in line and missing(PRICED) == []


PLANNED, CADENCES = busy()
PRICE = Price(currency="USD", node_hour=2.0)
PRICED_RUNS = Planned(replace(PLANNED.job, machine=replace(PLANNED.job.machine, price=PRICE)))
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
