"""Bills by hand: hours, money and energy, with each of the prices and without."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from deeppart_simulator.budget.bill import SPARES, USEFUL, bill, bill_rows, item, missing, show_energy, show_hours, show_money
from deeppart_simulator.machine.record import Power, Price
from hypothesis import given
from hypothesis import strategies as st

from tests.simulator.timing.jobs import MACHINE

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
    assert [len(row) for row in bill_rows(found)] == [4] * 4
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


@given(
    nodes=st.integers(1, 10_000),
    seconds=st.floats(1.0, 1e8),
    blocked=st.floats(0.0, 0.5),
    price=st.floats(0.01, 1000.0),
)
def test_twice_the_price_the_nodes_or_the_time_is_twice_the_money(
    nodes: int, seconds: float, blocked: float, price: float
) -> None:
    def money(factor: float = 1.0, nodes: int = nodes, seconds: float = seconds) -> float:
        machine = replace(PRICED, price=Price(currency="USD", node_hour=factor * price))
        found = bill(machine, nodes, seconds, {USEFUL: 1 - blocked, "blocked": blocked})
        assert found.total.money is not None and found.lost.money is not None
        assert found.lost.money == pytest.approx(blocked * found.total.money)
        total: float = found.total.money
        return total

    once = money()
    assert once == pytest.approx(nodes * seconds / 3600 * price)
    for twice in (money(2.0), money(nodes=2 * nodes), money(seconds=2 * seconds)):
        assert twice == pytest.approx(2 * once)


def test_shown_for_people() -> None:
    assert show_money(1234.4, "USD") == "1,234 USD" and show_money(0.4256, "EUR") == "0.426 EUR"
    assert [show_energy(kwh) for kwh in (0.5, 20, 1500, 2.5e6)] == ["500 Wh", "20 kWh", "1.5 MWh", "2.5 GWh"]
    assert show_hours(12345.6) == "12,346" and show_hours(0.125) == "0.125" and not math.isinf(PRICED.power.waiting)
