"""What a second of blocked time costs, by hand, and beside what the simulator predicts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.budget.bill import Way, lost_share, rows_of, ways_of
from deeppart_simulator.machine.record import Power, Price
from deeppart_simulator.timing.scale import study

from tests.simulator.timing.jobs import MACHINE, job

PRICED = replace(MACHINE, price=Price(currency="USD", node_hour=3.0), power=Power(busy=2000.0, waiting=500.0))


def test_a_second_after_every_nine_is_a_tenth() -> None:
    assert lost_share(1.0, 9.0) == pytest.approx(0.1) and lost_share(0.0, 9.0) == 0.0


def test_a_row_by_hand() -> None:
    """A tenth of 30 days of 100 nodes: 7,200 node-hours, 21,600 USD, and 3.6 MWh at 0.5 kW."""
    (row,) = rows_of(PRICED, 100, [9.0], [1.0], [], days=30)
    assert row.lost == pytest.approx(0.1)
    assert (row.cost.node_hours, row.cost.money, row.cost.kwh) == pytest.approx((7200, 21600, 3600))
    (half,) = rows_of(PRICED, 100, [9.0], [1.0], [], days=15)
    assert half.cost.money == pytest.approx(10800)


def test_ways_stand_where_their_time_puts_them_and_nothing_is_said_twice() -> None:
    rows = rows_of(PRICED, 1, [600.0, 60.0, 60.0], [1.0, 0.1, 1.0], [Way("this", 0.5), Way("that", 7.0)], days=1)
    assert [row.period_s for row in rows] == [60.0] * 4 + [600.0] * 4
    assert [(row.blocked_s, row.way) for row in rows[:4]] == [(0.1, ""), (0.5, "this"), (1.0, ""), (7.0, "that")]
    lost = [row.lost for row in rows[:4]]
    assert lost == sorted(lost) and rows[4].lost < rows[0].lost


def test_ways_are_as_scale_predicts_them() -> None:
    """16 GB on 4 nodes: the copy at 20 GB/s of a node; whole tensors straight to 4 GB/s of four nodes, after it."""
    ways = {way.name: way.blocked_s for way in ways_of(job())}
    points = {point.strategy: point for point in study(job(), [16], ["deeppart", "rank0"], ["none"])}
    assert ways["deeppart"] == pytest.approx(points["deeppart"].blocked_s) == pytest.approx(0.2)
    assert ways["DCP-like, in the background"] == pytest.approx(0.2)
    assert ways["DCP-like, waited for"] == pytest.approx(0.2 + 4.0)
    assert ways["torch.save on rank 0"] == pytest.approx(points["rank0"].blocked_s)
    assert ways["torch.save on rank 0"] > 16 / 1.24


def test_levels_do_not_slow_what_goes_straight_to_the_file_system() -> None:
    compressed = {way.name: way.blocked_s for way in ways_of(job(compression="tensor", capture="lazy"))}
    plain = {way.name: way.blocked_s for way in ways_of(job())}
    assert compressed.pop("deeppart") < plain.pop("deeppart"), "lazy: the copy is in the background"
    assert compressed == plain
