"""The bill of what is advised, against its waste."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deeppart_simulator.advise.choose import advise
from deeppart_simulator.advise.text import bill_of
from deeppart_simulator.machine.record import Failures, Power, Price
from deeppart_simulator.timing.stages import Job

from tests.simulator.campaign.jobs import DAY
from tests.simulator.timing.jobs import MACHINE, STATE

PRICED = replace(
    MACHINE,
    failures=Failures(node=10 * DAY, system=100 * DAY),
    price=Price(currency="USD", node_hour=2.0),
    power=Power(busy=1000.0, waiting=100.0),
)


def test_thirty_days_by_where_the_time_goes() -> None:
    """4 nodes for 720 hours each."""
    chosen = advise(Job(STATE, PRICED, 16, 4)).chosen
    found = {item.what: item for item in bill_of(chosen).items}
    total, lost = bill_of(chosen).total, bill_of(chosen).lost
    assert total.node_hours == pytest.approx(2880) and total.money == pytest.approx(5760)
    assert lost.node_hours == pytest.approx(2880 * chosen.waste.total)
    writing = found["blocked by checkpoints"].node_hours + found["slowed by the background"].node_hours
    assert writing == pytest.approx(2880 * chosen.waste.cost)
    assert found["training lost"].node_hours == pytest.approx(2880 * chosen.waste.rework)
    assert found["coming back"].node_hours == pytest.approx(2880 * chosen.waste.restart)
    # A call blocks once a period; the period has what it costs in it.
    blocked = chosen.blocked_s / chosen.cadence.period_s * 2880
    assert found["blocked by checkpoints"].node_hours == pytest.approx(blocked, rel=0.05)
    assert found["coming back"].kwh == pytest.approx(0.1 * found["coming back"].node_hours)
    assert found["training lost"].kwh == pytest.approx(found["training lost"].node_hours)
