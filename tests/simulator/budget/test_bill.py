"""Bills by hand: hours and money, with a price and without."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.budget import (
    USEFUL,
    bill,
    missing,
)
from deeppart_simulator.machine.record import Price

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
